"""What makes the chapters safe and fast: checks, precision, and fused kernels.

None of its modules is needed in order to follow a chapter:

- `shapes`: `checked` compares tensors with the shapes in a function's signature;
- `arguments`: checks of what a signature cannot say, such as a range of numbers;
- `kernels`: precision, rows that see nothing, and PyTorch's fused attention;
- `mixing`: fast products for attention whose weights depend on positions alone;
- `files`: files that are written whole or not at all.
"""
