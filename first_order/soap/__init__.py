"""SOAP: Adam in the eigenbases of Shampoo's preconditioners."""
