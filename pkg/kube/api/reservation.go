package api

import (
	"encoding/json"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// ReservationTime is the lifetime of a Reservation, from the last transition of its condition. It ends by
// itself, because its author may not be able to remove it.
const ReservationTime = time.Minute

// Reservation reserves GPUs of one node for a waiting pod, until the pod has a node or ReservationTime
// has passed. The command "kubectl inspect gpumem defrag" writes it.
type Reservation struct {
	Node string
	GPUs []gpu.UUID
}

// Reserved is the type of the pod condition with a Reservation as its JSON message. It is the same in all
// domains.
const Reserved v1.PodConditionType = "GPUMemoryRoomMade"

// Limits of a reservation: the number of GPUs that a pod can request, and the longest names that
// Kubernetes and the driver assign.
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

// Condition returns the condition for the reservation. Parameter now is its transition time.
func (r Reservation) Condition(now time.Time) v1.PodCondition {
	message, _ := json.Marshal(reservationJSON{Version: version, Node: r.Node, GPUs: r.GPUs}) // cannot fail: the fields are strings
	return v1.PodCondition{Type: Reserved, Status: v1.ConditionTrue, Reason: "OthersAreEvicted", Message: string(message), LastTransitionTime: metav1.NewTime(now)}
}

// ReservationOf returns a pod's reservation and its end. It returns false if the reservation is missing,
// malformed, expired or of another version. It also returns false if the transition time is a minute or
// more in the future, because such a reservation would last too long.
func ReservationOf(pod *v1.Pod, now time.Time) (r Reservation, until time.Time, ok bool) {
	at := slices.IndexFunc(pod.Status.Conditions, isReservation)
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

// isReservation reports whether a condition may contain a reservation.
func isReservation(c v1.PodCondition) bool {
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
