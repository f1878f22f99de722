package extender

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// filterBig filters the node big, with one GPU of 80 units. It returns whether the pod fits, and the
// duration of the request.
func (w *world) filterBig(pod *v1.Pod) (fits bool, took time.Duration) {
	began := time.Now()
	result := w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"big"}})
	return hasFeasible(result), time.Since(began)
}

func TestFilterLooksTwiceWhenAPodFitsNowhere(t *testing.T) {
	later := func(d time.Duration, do func()) { time.AfterFunc(d, do) }
	tests := []struct {
		name string
		news func(w *world, old *v1.Pod) // runs while Filter waits
		fits bool
		took time.Duration
	}{
		{name: "nothing is heard", took: recheckTimeout},
		{
			name: "room is heard of", fits: true, took: 30 * time.Millisecond,
			news: func(w *world, old *v1.Pod) {
				later(30*time.Millisecond, func() { w.Cache.RemovePod(string(old.UID)) })
			},
		},
		{
			name: "room is heard of after other news", fits: true, took: 60 * time.Millisecond,
			news: func(w *world, old *v1.Pod) {
				later(30*time.Millisecond, func() { w.Cache.RemoveNode("pair") })
				later(60*time.Millisecond, func() { w.Cache.RemovePod(string(old.UID)) })
			},
		},
		{
			name: "room is heard of too late", took: recheckTimeout,
			news: func(w *world, old *v1.Pod) {
				later(2*recheckTimeout, func() { w.Cache.RemovePod(string(old.UID)) })
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.Now = time.Now
				old, next := w.pod("old", "50"), w.pod("next", "40")
				if err := w.bind(old, "big"); err != "" {
					t.Fatal(err)
				}
				if tt.news != nil {
					tt.news(w, old)
				}
				fits, took := w.filterBig(next)
				if fits != tt.fits || took != tt.took {
					t.Errorf("fits %v after %v, want %v after %v", fits, took, tt.fits, tt.took)
				}
				time.Sleep(2 * recheckTimeout)
			})
		})
	}
}

func TestFilterLooksTwiceNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Now = time.Now
		if err := w.bind(w.pod("old", "50"), "big"); err != "" {
			t.Fatal(err)
		}
		next := w.pod("next", "40")
		waited := 0
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if _, took := w.filterBig(next); took > 0 {
				waited++
			}
		}
		if want := recheckBurst + 9; waited != want {
			t.Errorf("Filter waited %d times in 10 s, want %d: some in the first second, and one in each that follows", waited, want)
		}
	})
}

func TestFilterLooksOnceWhereNothingCanChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Now = time.Now
		for name, pod := range map[string]*v1.Pod{"it fits": w.pod("fits", "80"), "it can never fit": w.pod("huge", "81")} {
			if _, took := w.filterBig(pod); took != 0 {
				t.Errorf("%s: the answer took %v", name, took)
			}
		}
	})
}
