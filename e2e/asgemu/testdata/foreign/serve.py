"""Serves AWS as moto plays it on a free loopback port, says where on standard output, and ends with its standard
input: so it never outlives the test that started it, however that one ends."""

import logging
import sys

import moto
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(f"http://{host}:{port}", moto.__version__, flush=True)
sys.stdin.read()
server.stop()
