"""Gates, keywords and topics of a trained recurrent network (Palangi et al. 2016, Section V)."""
