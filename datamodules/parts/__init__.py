"""What every data module does alike, by role: each part has the options of its role and what is done with them."""
