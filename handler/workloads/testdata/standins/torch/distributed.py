"""Stands in for torch.distributed, with the environment that torchrun gives each rank.

Rank 0 collects the tensors of all, and every rank gets the greatest: a barrier, as there.
"""
import enum, json, os, socket, time

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class ReduceOp(enum.Enum):
    MAX = max


def init_process_group():
    global peers
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        with socket.create_server(address) as listener:
            peers = [listener.accept()[0].makefile("rw") for _ in range(WORLD_SIZE - 1)]
        return
    while True:
        try:
            peers = [socket.create_connection(address).makefile("rw")]
            return
        except ConnectionRefusedError:
            time.sleep(0.05)


def _send(peer, values):
    peer.write(json.dumps(values) + "\n")
    peer.flush()


def all_reduce(tensor, op):
    assert op is ReduceOp.MAX
    if RANK == 0:
        all_values = [tensor.values] + [json.loads(peer.readline()) for peer in peers]
        tensor.values = [max(values) for values in zip(*all_values)]
        for peer in peers:
            _send(peer, tensor.values)
    else:
        _send(peers[0], tensor.values)
        tensor.values = json.loads(peers[0].readline())
