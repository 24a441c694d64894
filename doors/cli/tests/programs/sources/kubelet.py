# A server with the kubelet's service for resources, by the unmodified gRPC library: it answers with the bytes of its
# standard input to each call, and prints a line when it listens.
#   kubelet.py SOCKET < ANSWER
import sys
import threading
from concurrent import futures

import grpc

answer = sys.stdin.buffer.read()
handlers = {"List": grpc.unary_unary_rpc_method_handler(lambda request, context: answer)}
server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
print("listening", flush=True)
threading.Event().wait()
