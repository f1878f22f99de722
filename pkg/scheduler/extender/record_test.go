package extender

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// remembering makes the world record its decisions.
func (w *world) remembering() *history.Log {
	log := history.NewLog(100)
	w.Decided = log.Add
	return log
}

func TestWhatWasConsideredIsRemembered(t *testing.T) {
	w := newWorld(t)
	log := w.remembering()
	pod := w.pod("a", "10")
	nodes := []string{"pair", "big", "plain"}
	w.Filter(t.Context(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes})
	w.Prioritize(t.Context(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes})
	w.Bind(t.Context(), &extenderv1.ExtenderBindingArgs{PodName: "a", PodNamespace: "team", PodUID: pod.UID, Node: "pair"})

	got := log.Pods("team", "a")[0]
	var verbs []string
	for _, d := range got.Decisions {
		verbs = append(verbs, d.Verb+" "+d.Result+" "+d.Node)
	}
	if diff := cmp.Diff([]string{"bind bound pair", "prioritize fits pair", "filter fits "}, verbs); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
	bind, filter := got.Decisions[0], got.Decisions[2]
	want := []history.Node{{Name: "pair", UnitMiB: 1024, GPUs: []history.GPU{
		{Index: 0, UUID: "GPU-aaaa", Capacity: 16, Free: 16, FreeCores: new(100), Chosen: true},
		{Index: 1, UUID: "GPU-bbbb", Capacity: 16, Free: 16, FreeCores: new(100)},
	}}}
	if diff := cmp.Diff(want, bind.Nodes); diff != "" {
		t.Errorf("bind (-want +got):\n%s", diff)
	}
	if filter.Asked != 3 || filter.Fit != 2 || len(filter.Nodes) != 1 || filter.Nodes[0].Reason != "NoDevices" {
		t.Errorf("filter: %+v", filter)
	}
}

func TestRefusalsAreRememberedWithTheirReason(t *testing.T) {
	w := newWorld(t)
	log := w.remembering()
	nodes := []string{"pair", "big", "plain"}
	ask := func(units, annotation string) {
		pod := w.pod("p", units)
		if annotation != "" {
			pod.Annotations = map[string]string{w.Names.Count(): annotation}
		}
		w.Filter(t.Context(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes})
	}
	for _, tc := range []struct {
		name, units, count string
		want               history.Decision
	}{
		{"too large", "100", "", history.Decision{Verb: "filter", Result: "unfit", Reason: "TooLarge", Asked: 3,
			Message: "needs 100 GiB on one GPU; the largest that qualifies here has 80 GiB: ask for less"}},
		{"unreadable", "10", "two", history.Decision{Verb: "filter", Result: "unfit", Reason: "Unreadable", Asked: 3,
			Message: `annotation gpumem.dev/gpu-count: "two": want a number of GPUs from 1 to 64`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ask(tc.units, tc.count)
			got := log.Pods("", "")[0].Decisions[0]
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(history.Decision{}, "Time", "Nodes")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for verb, ask := range map[string]func(*v1.Pod){
		history.Filter:     func(pod *v1.Pod) { w.Filter(t.Context(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes}) },
		history.Prioritize: func(pod *v1.Pod) { w.Prioritize(t.Context(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes}) },
		history.Preempt: func(pod *v1.Pod) {
			w.Preempt(t.Context(), &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToVictims: map[string]*extenderv1.Victims{"big": {}}})
		},
	} {
		t.Run("unanswered "+verb, func(t *testing.T) {
			pod := w.pod("p", "1")
			pod.Annotations = map[string]string{w.Names.Count(): "two"}
			ask(pod)
			if got := log.Pods("", "")[0].Decisions[0]; got.Verb != verb || got.Result != history.Unfit || got.Reason != history.Unreadable {
				t.Errorf("an unreadable pod: %+v", got)
			}
			w.Missing = func() string { return "no pods yet" }
			ask(w.pod("p", "1"))
			if got := log.Pods("", "")[0].Decisions[0]; got.Verb != verb || got.Result != history.Failed || got.Reason != history.Error {
				t.Errorf("not ready: %+v", got)
			}
			w.Missing = func() string { return "" }
		})
	}
	t.Run("bind", func(t *testing.T) {
		pod := w.pod("p", "100")
		w.Bind(t.Context(), &extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "team", PodUID: pod.UID, Node: "big"})
		if got := log.Pods("", "")[0].Decisions[0]; got.Result != history.Refused || got.Reason != placement.TooLarge.String() || got.Nodes[0].GPUs[0].Reason != "TooLarge" {
			t.Errorf("%+v", got)
		}
	})
}

func TestPreemptionsAreRemembered(t *testing.T) {
	w, _ := crowded(t)
	log := w.remembering()
	for _, tc := range []struct {
		units    string
		proposed nodesToVictims
		want     history.Decision
	}{
		{"40", nodesToVictims{"pair": victims(0, "low-0"), "big": victims(0, "bulk")}, history.Decision{Result: history.Fits, Asked: 2, Fit: 1}},
		{"40", nodesToVictims{"pair": victims(0, "low-0")}, history.Decision{
			Result: history.Unfit, Asked: 1, Reason: placement.Insufficient.String(), Message: noneIsEnough,
		}},
	} {
		w.preempt(w.preemptor(tc.units), tc.proposed)
		tc.want.Verb = history.Preempt
		got := log.Pods("team", "vip")[0].Decisions[0]
		if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(history.Decision{}, "Time", "Nodes")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestAnswersAreTimed(t *testing.T) {
	w := newWorld(t)
	took := make(map[string]time.Duration)
	w.Answered = func(verb string, d time.Duration) { took[verb] += d }
	w.Now = func() time.Time { w.now = w.now.Add(time.Second); return w.now }
	routes := w.Routes("v1")
	for path, body := range map[string]string{
		"/filter": `{"Pod":{"metadata":{"name":"x","namespace":"team","uid":"u"}},"NodeNames":["pair"]}`,
		"/bind":   `no JSON`,
	} {
		routes.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	}
	if diff := cmp.Diff([]bool{true, true, false}, []bool{took["filter"] > 0, took["bind"] > 0, took["prioritize"] > 0}); diff != "" {
		t.Errorf("timed %v", took)
	}
}
