"""communicators: the engines that move data between ranks, a file each."""
