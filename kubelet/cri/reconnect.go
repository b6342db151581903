package cri

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// reconnect keeps the wait after a runtime restart short: the socket is local.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}
