"""gRPC servicers: thin translations around one logic layer."""
