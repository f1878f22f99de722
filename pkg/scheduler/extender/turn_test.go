package extender

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
)

// Other extenders can have bound pods only while another kube-scheduler led. While the same kube-scheduler
// leads, the extender reads no pods, even after a long time without requests.
func TestWhenThePodsOfANodeAreReadBesideTheWatch(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 80})
	s.node("m", gpu.Device{UUID: "GPU-B", Allocatable: 80})
	e := s.extender()
	now := time.Now()
	e.Now = func() time.Time { return now }
	for i, step := range []struct {
		passes time.Duration
		leader string
		told   bool // the watch has shown all changes from before the lead
		node   string
		lists  int
	}{
		{0, "a", false, "n", 1},
		{binder.IdleThreshold, "a", false, "n", 1},
		{binder.IdleThreshold + 1, "a", false, "n", 2}, // a Bind of the previous leader may have been in progress
		{binder.Handover, "a", false, "n", 2},
		{binder.IdleThreshold + 1, "a", false, "n", 2},
		{binder.IdleThreshold + 1, "a", false, "m", 3},
		{time.Hour, "a", false, "m", 3},
		{binder.IdleThreshold + 1, "b", false, "m", 4}, // b led, so the current lead is a new one
		{binder.IdleThreshold + 1, "a", false, "m", 5},
		{0, "a", false, "n", 6},
		{0, "a", true, "n", 6},
		{binder.IdleThreshold + 1, "c", true, "n", 6},
		{binder.Handover, "", false, "n", 7}, // the leader is unknown
		{binder.Handover, "", false, "n", 8},
	} {
		now = now.Add(step.passes)
		s.leader, s.told = step.leader, step.told
		s.mustSchedule(e, s.create(t.Name()+string(rune('a'+i)), 1), step.node)
		if s.lists != step.lists {
			t.Errorf("step %d: pods were listed %d times, want %d", i, s.lists, step.lists)
		}
	}
}

// A process that knows when its lead began reads no Lease. It reads the pods of a node once in each lead,
// until the watch has shown all earlier bindings. It binds nothing if another process may lead before the
// binding lands.
func TestALeaderThatKnowsWhenItBegan(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 80})
	s.node("m", gpu.Device{UUID: "GPU-B", Allocatable: 80})
	e := s.extender()
	e.Cluster = &unled{apiServer: s, leader: errors.New("the Lease is read")}
	begin := time.Now()
	since, alone := begin, true
	e.Leads = func() (time.Time, bool) { return since, alone }
	for i, step := range []struct {
		since time.Duration // start of the lead, relative to the begin of the test
		alone bool
		told  bool // the watch has shown all changes from before the lead
		node  string
		lists int // number of reads so far
	}{
		{0, true, false, "n", 1},
		{0, true, false, "n", 1},
		{0, true, false, "m", 2},
		{0, false, false, "m", 2},
		{time.Hour, true, false, "m", 3},
		{time.Hour, true, false, "n", 4},
		{time.Hour, false, true, "n", 4},
		{2 * time.Hour, true, true, "n", 4},
	} {
		since, alone, s.told = begin.Add(step.since), step.alone, step.told
		pod := s.create(t.Name()+string(rune('a'+i)), 1)
		said := bindTo(e, pod, step.node)
		if bound := said == ""; bound != step.alone {
			t.Errorf("step %d: bound %t, want %t: %q", i, bound, step.alone, said)
		}
		if _, _, known := e.Cache.PodNode(string(pod.UID)); known != step.alone {
			t.Errorf("step %d: its memory is reserved: %t", i, known)
		}
		if s.lists != step.lists {
			t.Errorf("step %d: pods were listed %d times, want %d", i, s.lists, step.lists)
		}
	}
}

// Drain waits for a Bind in progress, and rejects new ones.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 80})
		e := s.extender()
		slow := &slow{apiServer: s, leads: make(chan struct{}), lists: make(chan struct{})}
		close(slow.leads)
		e.Cluster = slow
		said, drained := make(chan string, 1), make(chan struct{})
		go func() { said <- bindTo(e, s.create("under-way", 1), "n") }()
		synctest.Wait()
		go func() { e.Drain(); close(drained) }()
		synctest.Wait()
		select {
		case <-drained:
			t.Error("a Bind is under way")
		default:
		}
		if problem := bindTo(e, s.create("late", 1), "n"); !strings.Contains(problem, "is ending") {
			t.Errorf("a late Bind says %q", problem)
		}
		close(slow.lists)
		<-drained
		if problem := <-said; !strings.Contains(problem, "is ending") {
			t.Errorf("the Bind that had not been sent says %q", problem)
		}
	})
}

// unled is an API server whose reads of the leader or of the resource version fail.
type unled struct {
	*apiServer
	leader, revision error
}

func (u *unled) Leader(context.Context) (string, error)   { return "a", u.leader }
func (u *unled) Revision(context.Context) (string, error) { return "1", u.revision }

func TestNothingIsBoundWhileNobodySaysWhoLed(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 14})
	e := s.extender()
	u := &unled{apiServer: s}
	e.Cluster = u
	pod := s.create("x", 6)
	for _, tc := range []struct {
		leader, revision error
		want             string
	}{
		{errors.New("away"), nil, "read which kube-scheduler leads: away"},
		{nil, errors.New("away"), "read how far the API server has got: away"},
		{nil, nil, ""},
	} {
		u.leader, u.revision = tc.leader, tc.revision
		if got := bindTo(e, pod, "n"); got != tc.want {
			t.Errorf("Bind says %q, want %q", got, tc.want)
		}
		if _, _, known := e.Cache.PodNode(string(pod.UID)); known != (tc.want == "") {
			t.Errorf("after %q the pod is assumed: %t", tc.want, known)
		}
	}
}

// slow is an API server that delays the responses to reads, and counts the reads.
type slow struct {
	*apiServer
	leads, lists             chan struct{} // closed when the reads of the Lease, or of pods, may be answered
	leaders, revisions, pods atomic.Int64
}

func (s *slow) Leader(context.Context) (string, error) {
	s.leaders.Add(1)
	<-s.leads
	return "a", nil
}

func (s *slow) Revision(context.Context) (string, error) {
	s.revisions.Add(1)
	<-s.leads
	return "1", nil
}

func (s *slow) ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error) {
	s.pods.Add(1)
	<-s.lists
	return s.apiServer.ReadPodsOn(ctx, node)
}

// There may be hundreds of concurrent Binds when the Lease must be read again. With one read for each Bind,
// the Binds would exceed their time limits.
func TestBindsThatComeAtOnceWaitForOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 80})
		s.node("m", gpu.Device{UUID: "GPU-B", Allocatable: 80})
		e := s.extender()
		slow := &slow{apiServer: s, leads: make(chan struct{}), lists: make(chan struct{})}
		e.Cluster = slow
		const binds = 20
		said := make(chan string, binds)
		for i := range binds {
			pod := s.create(fmt.Sprint("pod-", i), 1)
			go func() { said <- bindTo(e, pod, []string{"n", "m"}[i%2]) }()
		}
		synctest.Wait()
		close(slow.leads)
		synctest.Wait()
		close(slow.lists)
		for range binds {
			if problem := <-said; problem != "" {
				t.Error(problem)
			}
		}
		if leaders, revisions, pods := slow.leaders.Load(), slow.revisions.Load(), slow.pods.Load(); leaders != 1 || revisions != 1 || pods != 2 {
			t.Errorf("%d reads of the Lease, %d of the revision, %d of pods; want 1, 1 and one for each of 2 nodes", leaders, revisions, pods)
		}
	})
}

// hung is an API server that never answers the first list of pods.
type hung struct {
	*apiServer
	lists atomic.Int64
}

func (h *hung) ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error) {
	if h.lists.Add(1) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.apiServer.ReadPodsOn(ctx, node)
}

// A read that hangs fails only the Bind that started the read. Binds that wait for it read again.
func TestAReadThatHangsFailsNoOtherBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 80})
		e := s.extender()
		e.Cluster = &hung{apiServer: s}
		said := make(chan string, 5)
		for i := range cap(said) {
			pod := s.create(fmt.Sprint("pod-", i), 1)
			go func() { said <- bindTo(e, pod, "n") }()
		}
		for range cap(said) {
			if problem := <-said; problem != "" {
				t.Error(problem)
			}
		}
	})
}

// tired is an API server that takes a long time for each read.
type tired struct{ *apiServer }

func (h *tired) Leader(context.Context) (string, error) {
	time.Sleep(binder.ReadTimeout - time.Millisecond)
	return "a", nil
}

func (h *tired) ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error) {
	time.Sleep(binder.ReadTimeout - time.Millisecond)
	return h.apiServer.ReadPodsOn(ctx, node)
}

// A Bind that times out before it sends the binding reserves nothing.
func TestABindWhoseTimeIsUpReservesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 80})
		e := s.extender()
		e.Cluster = &tired{s}
		pod := s.create("late", 1)
		if got, want := bindTo(e, pod, "n"), "the API server has not answered in 8s"; got != want {
			t.Errorf("Bind says %q, want %q", got, want)
		}
		if _, _, known := e.Cache.PodNode(string(pod.UID)); known || s.tries > 0 {
			t.Errorf("the pod is assumed: %t; bindings sent: %d", known, s.tries)
		}
	})
}
