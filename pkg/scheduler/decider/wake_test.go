package decider

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// TestARefusedPodKeepsItsPauses verifies that another refusal neither resets the growing pause between attempts, nor
// the time for which a node has refused the pod temporarily.
func TestARefusedPodKeepsItsPauses(t *testing.T) {
	start := time.Unix(1000, 0)
	var w waiters
	add := func(uid string, after time.Duration, temporary ...string) *waiting {
		w.add(&waiting{Question: cache.Question{Pod: placement.PodRef{Name: uid, UID: uid}}, decided: start.Add(after), temporary: temporary})
		return w.clone()[uid]
	}
	first := add("a", 0, "n1", "n2")
	if !first.since.Equal(start) || first.tries != 0 {
		t.Errorf("first refusal: %+v", first)
	}
	first.tries, first.next = 3, start.Add(time.Minute)
	for _, tc := range []struct {
		after     time.Duration
		temporary []string
		since     time.Duration
		queue     []string
	}{
		{1 * time.Second, []string{"n2", "n1"}, 0, []string{"n1"}}, // the nomination to n1 continues
		{2 * time.Second, []string{"n2"}, 0, []string{"n2"}},
		{3 * time.Second, nil, -1, nil},
		{4 * time.Second, []string{"n3"}, 4 * time.Second, []string{"n3"}},
	} {
		p := add("a", tc.after, tc.temporary...)
		since := start.Add(tc.since)
		if tc.since < 0 {
			since = time.Time{}
		}
		if p.tries != 3 || !p.next.Equal(start.Add(time.Minute)) || !p.since.Equal(since) || !slices.Equal(p.temporary, tc.queue) {
			t.Errorf("refusal after %s: %+v", tc.after, p)
		}
	}
	// A node has come to fit the pod between two refusals. Only the second is temporary.
	add("c", 0).fitNode = "n1"
	if p := add("c", 5*time.Minute, "n1"); !p.since.Equal(start.Add(5 * time.Minute)) {
		t.Errorf("a temporary refusal after another: %+v", p)
	}
	if other := add("b", time.Second); other.tries != 0 || !other.next.IsZero() {
		t.Errorf("another pod: %+v", other)
	}
}

// line is kube-scheduler's queue.
type line []*v1.Pod

func (l line) Waiting() []*v1.Pod                                  { return l }
func (line) Wake(context.Context, placement.PodRef, *string) error { return nil }

// A process loses its lead for a moment while a pod pauses between attempts to wake it. The pause continues when the
// process leads again.
func TestAShortLossOfTheLeadKeepsPauses(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("waits", "20")
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}}
	w.watch.pods["waits"] = pod
	w.Wake(t.Context(), line{})
	w.waiters.add(&waiting{Question: cache.Question{Pod: api.Ref(pod)}, decided: w.now})
	paused := *w.waiters.get(string(pod.UID))
	paused.tries, paused.next = 7, w.now.Add(time.Minute)
	w.waiters.update(w.waiters.get(string(pod.UID)), &paused)
	for _, missing := range []string{"the Lease was not renewed", ""} {
		w.missing = missing
		w.Wake(t.Context(), line{pod})
	}
	if got := w.waiters.get(string(pod.UID)); got == nil || got.tries != 7 || !got.next.Equal(paused.next) {
		t.Errorf("after the loss: %+v; want 7 tries and the next at %v", got, paused.next)
	}
}
