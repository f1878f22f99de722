package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// began is the time of the reservations in these tests.
var began = time.Unix(7, 0)

// reservedBy returns a pod with a reservation condition that has the message.
func reservedBy(message string) *v1.Pod {
	return &v1.Pod{Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: Reserved, Status: v1.ConditionTrue, Message: message, LastTransitionTime: metav1.NewTime(began)}}}}
}

// The format is a contract with other versions of gpumem.
func TestReservationForm(t *testing.T) {
	want := Reservation{Node: "gpu-a", GPUs: []gpu.UUID{"GPU-1", "GPU-2"}}
	c := want.Condition(began)
	if diff := cmp.Diff(v1.PodCondition{
		Type: "GPUMemoryRoomMade", Status: v1.ConditionTrue, Reason: "OthersAreEvicted", Message: `{"v":1,"node":"gpu-a","gpus":["GPU-1","GPU-2"]}`, LastTransitionTime: metav1.NewTime(began),
	}, c); diff != "" {
		t.Errorf("condition (-want +got):\n%s", diff)
	}
	got, _, ok := ReservationOf(reservedBy(c.Message), began)
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
	if got, _, ok := ReservationOf(&v1.Pod{}, began); ok {
		t.Errorf("of a pod without: %v", got)
	}
}

func TestAReservationThatCannotBeReadIsNone(t *testing.T) {
	uuids := func(n int) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`"GPU-%036d"`, i))
		}
		return strings.Join(out, ",")
	}
	for name, tc := range map[string]struct {
		message string
		want    int // number of GPUs; 0: no reservation
	}{
		"as it is written":      {`{"v":1,"node":"n","gpus":["GPU-1"]}`, 1},
		"with more than before": {`{"v":1,"node":"n","gpus":["GPU-1"],"until":"noon"}`, 1},
		"as many as can be":     {`{"v":1,"node":"` + strings.Repeat("n", 253) + `","gpus":[` + uuids(64) + `]}`, 64},
		"of the next version":   {`{"v":2,"node":"n","gpus":["GPU-1"]}`, 0},
		"of no version":         {`{"node":"n","gpus":["GPU-1"]}`, 0},
		"of version 1.5":        {`{"v":1.5,"node":"n","gpus":["GPU-1"]}`, 0},
		"in words":              {"n GPU-1", 0},
		"with words behind":     {`{"v":1,"node":"n","gpus":["GPU-1"]} n`, 0},
		"cut off":               {`{"v":1,"node":"n","gpus":["GPU-1"`, 0},
		"of no node":            {`{"v":1,"gpus":["GPU-1"]}`, 0},
		"of a list of nodes":    {`{"v":1,"node":["n"],"gpus":["GPU-1"]}`, 0},
		"of no GPU":             {`{"v":1,"node":"n"}`, 0},
		"one GPU is empty":      {`{"v":1,"node":"n","gpus":["GPU-1",""]}`, 0},
		"one GPU twice":         {`{"v":1,"node":"n","gpus":["GPU-1","GPU-1"]}`, 0},
		"one GPU is a number":   {`{"v":1,"node":"n","gpus":["GPU-1",2]}`, 0},
		"too many GPUs":         {`{"v":1,"node":"n","gpus":[` + uuids(65) + `]}`, 0},
		"a long UUID":           {`{"v":1,"node":"n","gpus":["` + strings.Repeat("G", 65) + `"]}`, 0},
		"a long name":           {`{"v":1,"node":"` + strings.Repeat("n", 254) + `","gpus":["GPU-1"]}`, 0},
		"long":                  {`{"v":1,"node":"n","gpus":["GPU-1"],"more":"` + strings.Repeat("x", 9<<10) + `"}`, 0},
	} {
		got, _, ok := ReservationOf(reservedBy(tc.message), began)
		if ok != (tc.want > 0) || len(got.GPUs) != tc.want || !ok && got.Node != "" {
			t.Errorf("%s: %t, %+v; want %d GPUs", name, ok, got, tc.want)
		}
		pod := reservedBy(tc.message)
		pod.Status.Conditions = Conditions(pod)
		if trimmed, _, _ := ReservationOf(pod, began); !cmp.Equal(got, trimmed) {
			t.Errorf("%s: %+v, of a trimmed pod %+v", name, got, trimmed)
		}
	}
}

// FuzzReservation checks that a parsed reservation is valid and does not change when it is written and parsed again.
func FuzzReservation(f *testing.F) {
	f.Add(`{"v":1,"node":"n","gpus":["GPU-1"]}`)
	f.Add(`{"V":1,"NODE":"n","gpus":["GPU-1","GPU-2"],"gpus":null}`)
	f.Add("n GPU-1")
	f.Fuzz(func(t *testing.T, s string) {
		r, _, ok := ReservationOf(reservedBy(s), began)
		if !ok {
			return
		}
		if r.Node == "" || len(r.GPUs) < 1 || len(r.GPUs) > maxReservedGPUs {
			t.Fatalf("%+v of %q", r, s)
		}
		if again, _, ok := ReservationOf(reservedBy(r.Condition(began).Message), began); !ok || !cmp.Equal(r, again) {
			t.Fatalf("read again: %t, %+v, want %+v", ok, again, r)
		}
	})
}
