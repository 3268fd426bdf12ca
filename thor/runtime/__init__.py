"""Devices and MindSpore: the only package that knows Ascend, GPU, CPU and the peculiarities of MindSpore."""
