"""What the examples share (extra `lab`).

- `experiment`: the command line, the record and the figures of an example
- `training`, `optimization`, `objectives`: the training loop and its settings
- `images`, `dataset`, `batching`: loading images, datasets and batches
- `resnet`: a small residual network to compare with
- `plotting`, `run_record`: figures in light and dark, and `run.json`
- `checkpoint`, `files`, `signals`, `seeds`, `distributed`: interruptions without loss
"""
