package controller

import (
	"strconv"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// A watch reports pods in order, and a list in any order. Each step is a handled pod or an arrived list, with
// the expected result of hasPassed("100") afterwards.
func TestProgress(t *testing.T) {
	type step struct {
		told   string // version of a handled pod
		listed string // version that the watch has reached; empty: the version of the pod
		want   bool
	}
	for name, steps := range map[string][]step{
		"a watch":                     {{"99", "", false}, {"100", "", false}, {"101", "", true}, {"150", "", true}},
		"a watch that runs ahead":     {{"99", "130", false}, {"120", "130", false}, {"125", "130", false}, {"131", "", true}},
		"a list, in any order":        {{"140", "150", false}, {"90", "150", false}, {"149", "150", false}, {"80", "150", false}, {"151", "", true}},
		"the first list":              {{"7", "100", false}, {"100", "100", false}, {"101", "101", true}},
		"a list that is too old":      {{"95", "99", false}, {"99", "99", false}, {"101", "", false}, {"102", "", true}},
		"a list that is worked off":   {{"120", "50", false}, {"130", "50", false}, {"140", "150", false}, {"151", "", true}},
		"versions longer than a word": {{"18446744073709551616", "", false}, {"18446744073709551617", "", true}},
	} {
		t.Run(name, func(t *testing.T) {
			listed := ""
			p := &progress{received: func() string { return listed }}
			var heard []string
			follow := p.wrapHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { heard = append(heard, "add") },
				UpdateFunc: func(any, any) { heard = append(heard, "update") },
				DeleteFunc: func(any) { heard = append(heard, "delete") },
			})
			if p.hasPassed("100") {
				t.Error("before anything was told")
			}
			for i, step := range steps {
				if listed = step.listed; listed == "" {
					listed = step.told
				}
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: step.told}}
				switch i % 3 {
				case 0:
					follow.OnAdd(pod, false)
				case 1:
					follow.OnUpdate(nil, pod)
				case 2:
					follow.OnDelete(pod)
				}
				if got := p.hasPassed("100"); got != step.want {
					t.Errorf("step %d: told up to 100: %t, want %t", i, got, step.want)
				}
			}
			follow.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: &v1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}}})
			if len(heard) != len(steps)+1 {
				t.Errorf("%d steps were passed on as %v", len(steps), heard)
			}
			if p.hasPassed("18446744073709551699") {
				t.Error("a version that is not reached counts as told")
			}
		})
	}
}

// TestProgressDuringEvents reads the progress while events arrive. The race detector checks the lock.
func TestProgressDuringEvents(t *testing.T) {
	p := &progress{received: func() string { return "1" }}
	follow := p.wrapHandler(toolscache.ResourceEventHandlerFuncs{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for version := range 100 {
				p.hasPassed("1000")
				follow.OnAdd(&v1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version + 1)}}, false)
			}
		})
	}
	readers.Wait()
	if p.handled != "100" {
		t.Errorf("seen up to %q, want 100", p.handled)
	}
}
