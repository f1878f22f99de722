package deviceplugin

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// asStatus converts an error to a gRPC status. The kubelet shows its text in the pod's status.
func asStatus(err error) error {
	why := reasons.Error(err)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, why)
	case errors.Is(err, allocation.ErrNoPod):
		return status.Error(codes.NotFound, why)
	default:
		return status.Error(codes.FailedPrecondition, why)
	}
}

// convert converts slot IDs to strings and back.
func convert[To, From ~string](ids []From) []To {
	out := make([]To, 0, len(ids))
	for _, id := range ids {
		out = append(out, To(id))
	}
	return out
}

// deviceNames returns the GPUs of slots, for log lines.
func deviceNames(s allocation.State, ids []gpu.SlotID) []string {
	var out []string
	for _, id := range ids {
		if d, err := s.Slots.Device(id); err == nil && !slices.Contains(out, string(d.UUID)) {
			out = append(out, string(d.UUID))
		}
	}
	return out
}
