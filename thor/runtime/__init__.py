"""What knows Ascend, GPU, CPU and MindSpore's oddities."""
