"""Data sets: where they come from, how their files are read, how batches are cut.

    source          the protocol of every data set, and the order of examples
    fetch           finds a data set's files, or downloads them
    batches         images in memory             <- fashion_mnist (idx), cifar
    image_source    images decoded when needed   <- imagenet_folder, mindrecord      (images: decoding and views)
    text            sequences of tokens          <- austen, bible, any plain text (vocabularies: wordpiece, characters)

`imagenet_samples` arranges twenty photographs in ImageNet's folder layout, for tests and demonstrations.
"""
