package podresources

import (
	"time"

	"google.golang.org/grpc/backoff"
)

// quickBackoff reconnects at once after a restart of the kubelet, which is on
// the same machine: gRPC's own would let us wait for minutes.
var quickBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second}
