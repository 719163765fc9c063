"""Stands in for Ray: what a driver is told about the node that it runs on."""

_connected = False


def init(address=None, ignore_reinit_error=False):
    global _connected
    if _connected and not ignore_reinit_error:
        raise RuntimeError("ray.init has been called twice")
    if address != "auto":
        raise ConnectionError("a driver of this cluster connects to address=auto")
    _connected = True


class _Context:
    def get_node_id(self):
        return "5a" * 28


def get_runtime_context():
    if not _connected:
        raise RuntimeError("ray.init has not been called")
    return _Context()
