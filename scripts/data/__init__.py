"""Data sets: where they come from, how their files are read, how batches are cut.

    source          the protocol of all of them, and the order in which examples are seen
    fetch           finds a set's files, or brings them
    batches         images in memory             <- fashion_mnist (idx), cifar
    image_source    images decoded when needed   <- imagenet_folder, mindrecord      (images: decoding and views)
    text            masked sequences of words    <- austen, any plain text           (wordpiece: the vocabulary)

`imagenet_samples` arranges twenty photographs as ImageNet is, for tests and demonstrations.
"""
