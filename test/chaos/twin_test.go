package chaos

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// described is a node with an inventory of two GPUs of 4 units, one of them not
// healthy.
func described(changes ...func(*v1.Node)) *v1.Node {
	in := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{
			inventoryKey: `{"v":1,"unitMiB":1024,"gpus":[{"uuid":"` + uuid0 + `","index":0,"units":4,"healthy":true},{"uuid":"` + uuid1 + `","index":1,"units":4,"healthy":false}]}`,
		}},
		Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{gpuMem: resource.MustParse("8")},
			Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
	for _, change := range changes {
		change(in)
	}
	return in
}

func TestHostOf(t *testing.T) {
	gpus := devices{{"n", uuid0, 0, 4, true}, {"n", uuid1, 1, 4, false}}
	tests := map[string]struct {
		change func(*v1.Node)
		want   host
	}{
		"ready":              {func(*v1.Node) {}, host{"n", true, 8, gpus}},
		"not ready":          {func(in *v1.Node) { in.Status.Conditions = nil }, host{"n", false, 8, gpus}},
		"cordoned":           {func(in *v1.Node) { in.Spec.Unschedulable = true }, host{"n", false, 8, gpus}},
		"tainted":            {func(in *v1.Node) { in.Spec.Taints = []v1.Taint{{Effect: v1.TaintEffectNoSchedule}} }, host{"n", false, 8, gpus}},
		"preferred less":     {func(in *v1.Node) { in.Spec.Taints = []v1.Taint{{Effect: v1.TaintEffectPreferNoSchedule}} }, host{"n", true, 8, gpus}},
		"nothing registered": {func(in *v1.Node) { in.Status.Allocatable = nil }, host{"n", true, 0, gpus}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := hostOf(described(tc.change))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(host{}, device{})); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
		})
	}
	if got, err := hostOf(&v1.Node{}); err == nil {
		t.Errorf("%+v of a node without an inventory, want an error", got)
	}
}

func TestFitting(t *testing.T) {
	pinned := func(uuid string) func(*v1.Pod) { return annotated(uuidKey, uuid) }
	two, exclusive := annotated(countKey, "2"), annotated(policyKey, "exclusive")
	on := func(node string) func(*v1.Pod) { return func(in *v1.Pod) { in.Spec.NodeName = node } }
	tests := map[string]struct {
		nodes  func(hosts)
		others []*v1.Pod
		pod    *v1.Pod
		want   []string
	}{
		"both":                         {pod: made("p", 4, unbound), want: []string{"n", "m"}},
		"one GPU is too small":         {pod: made("p", 5, unbound), want: []string{"m"}},
		"no GPU is large enough":       {pod: made("p", 9, unbound)},
		"two GPUs":                     {pod: made("p", 8, unbound, two), want: []string{"n"}},
		"two GPUs, one of them used":   {pod: made("p", 8, unbound, two), others: []*v1.Pod{made("a", 1, with(1, uuid0))}},
		"beside another":               {pod: made("p", 3, unbound, pinned(uuid0)), others: []*v1.Pod{made("a", 1, with(1, uuid0))}, want: []string{"n"}},
		"not beside another":           {pod: made("p", 4, unbound, pinned(uuid0)), others: []*v1.Pod{made("a", 1, with(1, uuid0))}},
		"fragmented":                   {pod: made("p", 4, unbound), others: []*v1.Pod{made("a", 1, with(1, uuid0)), made("b", 1, with(1, uuid1)), made("c", 8, on("m"), with(8, uuid2))}},
		"what has ended is free":       {pod: made("p", 4, unbound, pinned(uuid0)), others: []*v1.Pod{made("a", 5, with(4, uuid0), ended)}, want: []string{"n"}},
		"exclusive, on an empty GPU":   {pod: made("p", 1, unbound, exclusive), others: []*v1.Pod{made("a", 1, with(1, uuid0))}, want: []string{"n", "m"}},
		"exclusive, on a used GPU":     {pod: made("p", 1, unbound, exclusive, pinned(uuid0)), others: []*v1.Pod{made("a", 1, with(1, uuid0))}},
		"beside an exclusive one":      {pod: made("p", 1, unbound, pinned(uuid0)), others: []*v1.Pod{made("a", 1, exclusive, with(1, uuid0))}},
		"a GPU is not healthy":         {pod: made("p", 1, unbound, pinned(uuid0)), nodes: func(all hosts) { all[0].gpus[0].healthy = false }},
		"the node takes none":          {pod: made("p", 1, unbound), nodes: func(all hosts) { all[0].takes = false }, want: []string{"m"}},
		"the kubelet offers less":      {pod: made("p", 3, unbound, pinned(uuid1)), nodes: func(all hosts) { all[0].units = 5 }, others: []*v1.Pod{made("a", 3, with(3, uuid0))}},
		"a bound pod is on no GPU yet": {pod: made("p", 1, unbound), others: []*v1.Pod{made("a", 1)}, want: []string{"m"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var copied hosts
			for _, h := range nodes {
				h.gpus = append(devices(nil), h.gpus...)
				copied = append(copied, h)
			}
			if tc.nodes != nil {
				tc.nodes(copied)
			}
			pods := read(t, append(tc.others, tc.pod)...)
			if diff := cmp.Diff(tc.want, copied.fitting(pods, pods[len(pods)-1])); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIdle(t *testing.T) {
	notReady := func(in *v1.Pod) { in.Status.Conditions = nil }
	deleted := func(in *v1.Pod) { in.DeletionTimestamp = &metav1.Time{} }
	pods := read(t,
		made("runs", 1, with(1, uuid0)),
		made("fits", 1, unbound),
		made("fits-not", 9, unbound),
		made("starts", 1, with(1, uuid0), notReady),
		made("ended", 1, with(1, uuid0), notReady, ended),
		made("goes", 1, with(1, uuid0), notReady, deleted),
		made("comes-and-goes", 1, with(1, uuid0), notReady, func(in *v1.Pod) { in.Labels[shapeLabel] = restarts }),
	)
	var got []string
	for _, p := range nodes.idle(pods) {
		got = append(got, p.name)
	}
	if diff := cmp.Diff([]string{"ns/fits", "ns/starts"}, got); diff != "" {
		t.Errorf("pods that fit and do not run (-want +got):\n%s", diff)
	}
}

func TestDescribe(t *testing.T) {
	broken := hosts{nodes[0], {name: "m", units: 8, gpus: devices{{"m", uuid2, 0, 8, false}}}}
	got := broken.describe(read(t, made("a", 3, with(3, uuid0)), made("b", 1), made("c", 2, unbound)))
	want := "n has 4 of 8 units free by their sum; takes pods: true; knows all their GPUs: false; free by GPU: GPU0 1 of 4 GPU1 4 of 4\n" +
		"m has 8 of 8 units free by their sum; takes pods: false; knows all their GPUs: true; free by GPU: GPU0 8 of 8 (not healthy)\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestWaits(t *testing.T) {
	fault := time.Unix(1000, 0)
	type look struct {
		after   time.Duration
		waiting string // names of pods
		late    string
		over    bool
		again   bool // the pods wait once more from then on
	}
	second := time.Second
	tests := map[string]struct {
		outage  time.Duration // after the fault
		looks   []look
		longest time.Duration
	}{
		"none":                    {looks: []look{{after: 5 * second, over: true}}},
		"it runs in time":         {looks: []look{{after: 5 * second, waiting: "a"}, {after: 60 * second, waiting: "a"}, {after: 61 * second, over: true}}, longest: 60 * second},
		"it is late, told once":   {looks: []look{{after: 61 * second, waiting: "a", late: "a", over: true}, {after: 62 * second, waiting: "a", over: true}}, longest: 62 * second},
		"one is late, one is not": {looks: []look{{after: second, waiting: "a"}, {after: 61 * second, waiting: "a b", late: "a"}, {after: 62 * second, waiting: "a", over: true}}, longest: 62 * second},
		"it fits only later":      {looks: []look{{after: 30 * second, over: true}, {after: 80 * second, waiting: "a"}, {after: 90 * second, waiting: "a"}}, longest: 60 * second},
		"it did not fit between":  {looks: []look{{after: 50 * second, waiting: "a"}, {after: 51 * second, over: true}, {after: 70 * second, waiting: "a"}}, longest: 50 * second},
		"after an outage":         {outage: -5 * second, looks: []look{{after: 114 * second, waiting: "a"}, {after: 115 * second, waiting: "a", late: "a", over: true}}, longest: 115 * second},
		"once more":               {looks: []look{{after: 61 * second, waiting: "a", late: "a", over: true, again: true}, {after: 100 * second, waiting: "a"}, {after: 122 * second, waiting: "a", late: "a", over: true}}, longest: 122 * second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			outage := time.Time{}
			if tc.outage != 0 {
				outage = fault.Add(tc.outage)
			}
			w := newWaits(fault, outage)
			for _, l := range tc.looks {
				var waiting []pod
				for name := range strings.FieldsSeq(l.waiting) {
					waiting = append(waiting, pod{uid: types.UID(name)})
				}
				late, over := w.look(fault.Add(l.after), waiting)
				var uids []string
				for _, p := range late {
					uids = append(uids, string(p.uid))
				}
				if got := strings.Join(uids, " "); got != l.late || over != l.over {
					t.Errorf("after %s: late %q, over %t; want %q, %t", l.after, got, over, l.late, l.over)
				}
				if l.again {
					w.again(fault.Add(l.after))
				}
			}
			if w.longest != tc.longest {
				t.Errorf("longest %s, want %s", w.longest, tc.longest)
			}
		})
	}
}

func TestLastDump(t *testing.T) {
	const log = `I1123 15:00:00.000000       1 comparer.go:70] "Cache mismatch" missedPods=[] redundantPods=["old-uid"]
I1123 15:00:00.000001       1 dumper.go:60] "Dump of cached NodeInfo" nodes=<
	Node name: earlier
	Scheduled Pods(number: 1):
	name: old, namespace: ns, uid: old-uid, phase: Running, nominated node: 
 >
I1123 15:00:00.000002       1 dumper.go:67] "Dump of scheduling queue" summary="" pods=<
	name: waits, namespace: ns, uid: waits-uid, phase: Pending, nominated node: 
 >
I1123 15:01:00.000001       1 dumper.go:60] "Dump of cached NodeInfo" nodes=<
	Node name: n
	Deleted: false
	Requested Resources: &{MilliCPU:0}
	Allocatable Resources:&{MilliCPU:0}
	Scheduled Pods(number: 2):
	name: a, namespace: ns, uid: a-uid, phase: Running, nominated node: 
	name: b, namespace: ns, uid: b-uid, phase: Pending, nominated node: 
	
	
	Node name: m
	Scheduled Pods(number: 1):
	name: c, namespace: kube-system, uid: c-uid, phase: Running, nominated node: 
 >
I1123 15:01:00.000002       1 dumper.go:67] "Dump of scheduling queue" summary="" pods=<
	name: waits, namespace: ns, uid: waits-uid, phase: Pending, nominated node: 
 >
I1123 15:01:01.000000       1 eventhandlers.go:1] "Delete event for unscheduled pod" pod="ns/a"
I1123 15:01:02.000000       1 eventhandlers.go:1] "Delete event for unscheduled pod" pod="ns/ab"`
	lines := strings.Split(log, "\n")
	want := []counted{{"n", "ns/a", "a-uid"}, {"n", "ns/b", "b-uid"}, {"m", "kube-system/c", "c-uid"}}
	if diff := cmp.Diff(want, lastDump(lines), cmp.AllowUnexported(counted{})); diff != "" {
		t.Errorf("what is counted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{lines[0], lines[len(lines)-2]}, linesAbout(lines, []string{"ns/a"})); diff != "" {
		t.Errorf("lines about a pod (-want +got):\n%s", diff)
	}
	if got := linesAbout(slices.Repeat(lines, 50), []string{"ns/a"}); len(got) != fewLines {
		t.Errorf("%d lines about a pod, want %d", len(got), fewLines)
	}
}

func TestReportTellsOfTheWait(t *testing.T) {
	r := Report{Pods: 7, Faults: 2, Idle: 1, Findings: Findings{samples: samples{wait: 61500 * time.Millisecond}, Violations: []string{"idle: it waits"}}}
	lines := strings.Split(r.String(), "\n")
	const want = "result: chaos pods=7 faults=2 violations=1 leaked=0 harmed=0 corrections=0 longest-wait=61.5s waiting-though-fits=1"
	if got := lines[len(lines)-1]; got != want || r.OK() {
		t.Errorf("got %q, OK %t; want %q, false", got, r.OK(), want)
	}
}

func TestWatcherReportsIdlePods(t *testing.T) {
	w := &watcher{known: make(map[string]bool), journal: &journal{}, log: io.Discard}
	w.idle(read(t, made("a", 1, unbound))[0], []string{"n", "m"}, "n has room\n")
	w.idle(read(t, made("b", 1))[0], nil, "it starts\n")
	w.waited(70 * time.Second)
	w.waited(10 * time.Second)
	want := []string{
		"idle: pod ns/a (a-uid) fits on n and m and is late to run after the last fault: no room\nn has room\n",
		"idle: pod ns/b (b-uid) is bound to n and is late to run after the last fault: \nit starts\n",
	}
	got := w.findings()
	if diff := cmp.Diff(want, got.Violations); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
	if w.count(idle) != 2 || got.wait != 70*time.Second {
		t.Errorf("%d pods waited, the longest for %s; want 2 and 1m10s", w.count(idle), got.wait)
	}
}

func TestFacts(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC) }
	b := &bench{client: fake.NewClientset(
		&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a", CreationTimestamp: at(4)}, EventTime: metav1.MicroTime(at(4)), Reason: "FailedScheduling", Message: "no room", Series: &v1.EventSeries{LastObservedTime: metav1.MicroTime(at(9))}},
		&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "b", CreationTimestamp: at(5)}, EventTime: metav1.MicroTime(at(5)), Reason: "Scheduled", Message: "to n"},
	)}
	p := read(t, made("p", 4, unbound, annotated(countKey, "2")))
	got := b.facts(t.Context(), nodes[1:], p, p[0])
	want := `it asks for 4 units of 2 GPUs, pinned to "", exclusive: false
m has 8 of 8 units free by their sum; takes pods: true; knows all their GPUs: true; free by GPU: GPU0 8 of 8
event of 03:04:00, last 03:09:00: FailedScheduling: no room
event of 03:05:00, last 03:05:00: Scheduled: to n
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
