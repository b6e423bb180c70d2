"""Audit of a memory: rows whose labels are probably wrong, with the rows that contradict them."""

from zoo.audit.audit import Audit as Audit
from zoo.audit.audit import AuditedRow as AuditedRow
from zoo.audit.audit import Contradiction as Contradiction
from zoo.audit.audit import audit as audit
