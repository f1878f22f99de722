package api

import (
	"encoding/json"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// ReservationTime is how long a Reservation lasts from the last transition of its condition on:
// nobody may be left to take it back.
const ReservationTime = time.Minute

// Reservation is what is kept for a pod that waits, until it has a node or ReservationTime has
// passed: GPUs of one node (kubectl inspect gpumem defrag).
type Reservation struct {
	Node string
	GPUs []gpu.UUID
}

// Reserved is the type of the condition of a pod that carries its Reservation, as JSON in the
// message. It is the same in all domains.
const Reserved v1.PodConditionType = "GPUMemoryRoomMade"

// What a reservation may be, and what is read of one: as many GPUs as a pod can ask for, of
// names as long as Kubernetes and the driver give.
const (
	maxReservedGPUs   = maxCount
	maxNodeName       = 253
	maxUUID           = 64
	maxReservationLen = 8 << 10
)

type reservationJSON struct {
	Version int        `json:"v"`
	Node    string     `json:"node"`
	GPUs    []gpu.UUID `json:"gpus"`
}

// Condition returns the condition that carries the reservation, made at a time.
func (r Reservation) Condition(now time.Time) v1.PodCondition {
	message, _ := json.Marshal(reservationJSON{Version: version, Node: r.Node, GPUs: r.GPUs}) // of strings: it cannot fail
	return v1.PodCondition{Type: Reserved, Status: v1.ConditionTrue, Reason: "OthersAreEvicted", Message: string(message), LastTransitionTime: metav1.NewTime(now)}
}

// ReservationOf returns a pod's reservation, and when it ends. One that is of another version, or
// is not as this one writes it, is none at all, nor is one whose time has passed. One of a clock that
// is a minute ahead or more is none either: it would last for longer.
func ReservationOf(pod *v1.Pod, now time.Time) (r Reservation, until time.Time, ok bool) {
	at := slices.IndexFunc(pod.Status.Conditions, reserves)
	if at < 0 {
		return r, until, false
	}
	c := pod.Status.Conditions[at]
	if age := now.Sub(c.LastTransitionTime.Time); age.Abs() >= ReservationTime {
		return r, until, false
	}
	var in reservationJSON
	if err := decode(c.Message, &in); err != nil || !in.valid() {
		return r, until, false
	}
	return Reservation{Node: in.Node, GPUs: in.GPUs}, c.LastTransitionTime.Add(ReservationTime), true
}

// reserves reports whether a condition may carry a reservation.
func reserves(c v1.PodCondition) bool {
	return c.Type == Reserved && c.Status == v1.ConditionTrue && len(c.Message) <= maxReservationLen
}

func (in reservationJSON) valid() bool {
	if in.Node == "" || len(in.Node) > maxNodeName || len(in.GPUs) < 1 || len(in.GPUs) > maxReservedGPUs {
		return false
	}
	for i, id := range in.GPUs {
		if id == "" || len(id) > maxUUID || slices.Contains(in.GPUs[:i], id) {
			return false
		}
	}
	return true
}
