"""Tools for training on several devices and hosts: a launcher, rank tables, job templates."""
