package chaos

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/stack"
)

const (
	uuid0 = "GPU-00000000-aaaa"
	uuid1 = "GPU-11111111-bbbb"
	uuid2 = "GPU-22222222-cccc"
)

// Node n has two GPUs of 4 units, node m one of 8.
var (
	nodes = []node{
		{name: "n", takesPods: true, units: 8, gpus: []gpu{{"n", uuid0, 0, 4, true}, {"n", uuid1, 1, 4, true}}},
		{name: "m", takesPods: true, units: 8, gpus: []gpu{{"m", uuid2, 0, 8, true}}},
	}
	all = gpusOf(nodes)
)

// made is a pod that is bound to n and runs, with a container of these units.
func made(name string, units int64, changes ...func(*v1.Pod)) *v1.Pod {
	in := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec:       v1.PodSpec{NodeName: "n", Containers: []v1.Container{stack.SampleContainer("main", units)}},
		Status: v1.PodStatus{
			Phase:      v1.PodRunning,
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
			ContainerStatuses: []v1.ContainerStatus{
				{Name: "main", ContainerID: "containerd://" + name + "-main", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
			},
		},
	}
	for _, change := range changes {
		change(in)
	}
	return in
}

// with assigns units of each of the GPUs to a pod.
func with(units int64, uuids ...string) func(*v1.Pod) {
	var gpus []string
	for _, uuid := range uuids {
		gpus = append(gpus, fmt.Sprintf(`{"uuid":%q,"units":%d}`, uuid, units))
	}
	return annotated(assignmentKey, `{"v":1,"unitMiB":1024,"gpus":[`+strings.Join(gpus, ",")+`]}`)
}

func annotated(key, value string) func(*v1.Pod) {
	return func(in *v1.Pod) { in.Annotations[key] = value }
}

func unbound(in *v1.Pod) {
	in.Spec.NodeName = ""
	in.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Message: "no room"}}
}

func ended(in *v1.Pod) { in.Status.Phase = v1.PodSucceeded }

func corrected(in *v1.Pod) {
	in.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "gpumem-extender", Subresource: "binding"}, {Manager: devicePlugin}}
}

func read(t *testing.T, in ...*v1.Pod) []pod {
	t.Helper()
	var out []pod
	for _, one := range in {
		p, ok := parsePod(one)
		if !ok {
			t.Fatalf("pod %s asks for no GPU memory", one.Name)
		}
		out = append(out, p)
	}
	return out
}

func lives(pod, container string, limitMiB int64, uuids ...string) process {
	p := process{uuids: uuids, limitMiB: limitMiB}
	p.Node, p.Pod, p.Container, p.PID = "n", types.UID(pod+"-uid"), pod+"-"+container, 7
	return p
}

// want checks that there is one finding with each of the texts, in order.
func want(t *testing.T, got []finding, texts ...string) {
	t.Helper()
	var is []string
	for i, f := range got {
		is = append(is, f.String())
		if i < len(texts) && strings.Contains(f.String(), texts[i]) {
			is[i] = texts[i]
		}
	}
	if diff := cmp.Diff(texts, is); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestParsePodCountsContainersAsTheKubeletDoes(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	p := read(t, made("a", 2, with(7, uuid0), func(in *v1.Pod) {
		sidecar := stack.SampleContainer("sidecar", 1)
		sidecar.RestartPolicy = &always
		in.Spec.InitContainers = []v1.Container{stack.SampleContainer("first", 6), sidecar, stack.SampleContainer("second", 6)}
		in.Spec.Containers = append(in.Spec.Containers, stack.SampleContainer("none", 0))
	}))[0]
	if p.units != 7 || p.count != 1 || p.repairable() {
		t.Errorf("need %d of %d GPUs, repairable %t; want 7 of 1, not repairable", p.units, p.count, p.repairable())
	}
	if diff := cmp.Diff(map[string]int64{"first": 6, "sidecar": 1, "second": 6, "main": 2}, p.containers); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if _, ok := parsePod(made("b", 0)); ok {
		t.Error("a pod that asks for nothing is one of those that do")
	}
}

func TestCheckHeld(t *testing.T) {
	tests := map[string]struct {
		held []holding
		want []string
	}{
		"each its own": {held: []holding{{"ns/a", "main", []string{"00000000-0", "00000000-1"}}, {"ns/a", "side", []string{"00000000-3"}}, {"ns/b", "main", []string{"11111111-0"}}}},
		"a unit twice": {
			held: []holding{{"ns/b", "main", []string{"00000000-0"}}, {"ns/a", "main", []string{"00000000-0"}}},
			want: []string{"I1: the kubelet of n allocated 00000000-0 to ns/a/main and ns/b/main"},
		},
		"a unit past the end":  {held: []holding{{"ns/a", "main", []string{"00000000-4"}}}, want: []string{"I1: the kubelet of n allocated 00000000-4, which is no unit"}},
		"a unit below the end": {held: []holding{{"ns/a", "main", []string{"00000000--1"}}}, want: []string{"no unit of its GPUs"}},
		"another node's":       {held: []holding{{"ns/a", "main", []string{"22222222-0"}}}, want: []string{"no unit of its GPUs"}},
		"no ID":                {held: []holding{{"ns/a", "main", []string{"nvidia0"}}}, want: []string{"no unit of its GPUs"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { want(t, checkHeld(all, "n", tc.held), tc.want...) })
	}
}

func TestCheckShares(t *testing.T) {
	tests := map[string]struct {
		pods       []*v1.Pod
		want       []string
		repairable bool
	}{
		"full":                       {pods: []*v1.Pod{made("a", 3, with(3, uuid0)), made("b", 1, with(1, uuid0)), made("c", 4, with(4, uuid1))}},
		"what has ended is free":     {pods: []*v1.Pod{made("a", 3, with(3, uuid0), ended), made("b", 4, with(4, uuid0))}},
		"what is bound to no node":   {pods: []*v1.Pod{made("a", 3, with(3, uuid0), unbound), made("b", 4, with(4, uuid0))}},
		"too much":                   {pods: []*v1.Pod{made("a", 3, with(3, uuid0)), made("b", 2, with(2, uuid0))}, want: []string{"I2: " + uuid0 + " of n has 4 units, and 5 are assigned: ns/a (a-uid) 3; ns/b (b-uid) 2"}},
		"too much for now":           {pods: []*v1.Pod{made("a", 3, with(3, uuid0)), made("b", 2, with(2, uuid0), corrected)}, want: []string{"I2: "}, repairable: true},
		"too much on two GPUs":       {pods: []*v1.Pod{made("a", 10, with(5, uuid0, uuid1), annotated(countKey, "2"))}, want: []string{"I2: " + uuid0, "I2: " + uuid1}},
		"too much on the other node": {pods: []*v1.Pod{made("a", 9, with(9, uuid2), func(in *v1.Pod) { in.Spec.NodeName = "m" })}, want: []string{"of m has 8 units, and 9 are assigned"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := checkShares(all, read(t, tc.pods...))
			want(t, got, tc.want...)
			for _, f := range got {
				if f.repairable != tc.repairable {
					t.Errorf("%v: repairable %t, want %t", f, f.repairable, tc.repairable)
				}
			}
		})
	}
}

func TestCheckAssignment(t *testing.T) {
	two := annotated(countKey, "2")
	tests := map[string]struct {
		pod        *v1.Pod
		want       []string
		repairable bool
	}{
		"one GPU":              {pod: made("a", 3, with(3, uuid0))},
		"two GPUs":             {pod: made("a", 4, two, with(2, uuid0, uuid1))},
		"none":                 {pod: made("a", 3), want: []string{"I4: pod ns/a (a-uid) on n: it has no assignment"}},
		"none yet":             {pod: made("a", 3, func(in *v1.Pod) { in.Labels[shapeLabel] = direct }), want: []string{"it has no assignment"}, repairable: true},
		"none and not bound":   {pod: made("a", 3, unbound)},
		"none and ended":       {pod: made("a", 3, ended)},
		"broken":               {pod: made("a", 3, annotated(assignmentKey, "{")), want: []string{"is invalid"}},
		"another version":      {pod: made("a", 3, annotated(assignmentKey, `{"v":2,"unitMiB":1024}`)), want: []string{"has version 2"}},
		"another unit":         {pod: made("a", 3, annotated(assignmentKey, `{"v":1,"unitMiB":1}`)), want: []string{"units of 1 MiB"}},
		"too few GPUs":         {pod: made("a", 4, two, with(4, uuid0)), want: []string{"it requests 2 GPUs and has"}},
		"a GPU twice":          {pod: made("a", 4, two, with(2, uuid0, uuid0)), want: []string{"it requests 2 GPUs and has"}},
		"another node's GPU":   {pod: made("a", 3, with(3, uuid2)), want: []string{"its node has no GPU " + uuid2}},
		"fewer units":          {pod: made("a", 3, with(2, uuid0)), want: []string{"it requests 3 units of 1 GPUs and has 2 of " + uuid0}},
		"more units of two":    {pod: made("a", 4, two, with(4, uuid0, uuid1)), want: []string{"it requests 4 units of 2 GPUs and has 4"}},
		"corrected, yet wrong": {pod: made("a", 3, with(3, uuid2), corrected), want: []string{"its node has no GPU"}, repairable: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := checkAssignment(all, read(t, tc.pod)[0])
			want(t, got, tc.want...)
			if len(got) > 0 && got[0].repairable != tc.repairable {
				t.Errorf("repairable %t, want %t", got[0].repairable, tc.repairable)
			}
		})
	}
}

func TestCheckRest(t *testing.T) {
	given := holding{"ns/a", "main", []string{"00000000-0", "00000000-1", "00000000-2"}}
	seen := lives("a", "main", 3072, uuid0)
	notReady := func(in *v1.Pod) { in.Status.Conditions = nil }
	shaped := func(shape string) func(*v1.Pod) { return func(in *v1.Pod) { in.Labels[shapeLabel] = shape } }
	tests := map[string]struct {
		pod    *v1.Pod
		others []*v1.Pod
		held   []holding
		living []process
		want   []string
	}{
		"all agree":        {pod: made("a", 3, with(3, uuid0)), held: []holding{given}, living: []process{seen}},
		"written is other": {pod: made("a", 3, with(3, uuid1)), held: []holding{given}, living: []process{seen}, want: []string{"I5: pod ns/a (a-uid) is assigned to [" + uuid1 + "]; container main requests 3 units, and the kubelet allocated map[" + uuid0 + ":3]", "and sees 3072 MiB of [" + uuid0 + "]"}},
		"given is less":    {pod: made("a", 4, with(4, uuid0)), held: []holding{given}, living: []process{lives("a", "main", 4096, uuid0)}, want: []string{"container main requests 4 units, and the kubelet allocated map[" + uuid0 + ":3]"}},
		"seen is more":     {pod: made("a", 3, with(3, uuid0)), held: []holding{given}, living: []process{lives("a", "main", 4096, uuid0)}, want: []string{"sees 4096 MiB"}},
		"given is none":    {pod: made("a", 3, with(3, uuid0)), living: []process{seen}, want: []string{"container main runs, and the kubelet allocated nothing to it"}},
		"seen is none":     {pod: made("a", 3, with(3, uuid0)), held: []holding{given}, want: []string{"container main runs without GPU memory in its environment"}},

		"it does not run":             {pod: made("a", 3, with(3, uuid0), notReady), want: []string{"stuck: pod ns/a (a-uid) is bound to n and does not run"}},
		"it fails again and again":    {pod: made("a", 3, with(3, uuid0), notReady, shaped(restarts))},
		"it has ended":                {pod: made("a", 3, with(3, uuid0), ended)},
		"it does not go":              {pod: made("a", 3, with(3, uuid0), func(in *v1.Pod) { in.DeletionTimestamp = &metav1.Time{} }), want: []string{"still being deleted"}},
		"nobody looks at it":          {pod: made("a", 3, unbound, func(in *v1.Pod) { in.Status.Conditions = nil }), want: []string{"has no reason"}},
		"it waits with room":          {pod: made("a", 8, unbound), want: []string{"stuck: pod ns/a (a-uid) waits although it fits on m: no room"}},
		"it waits without":            {pod: made("a", 9, unbound)},
		"it waits for two with room":  {pod: made("a", 8, unbound, annotated(countKey, "2")), want: []string{"waits although it fits on n"}},
		"it waits for two without":    {pod: made("a", 8, unbound, annotated(countKey, "2")), others: []*v1.Pod{made("b", 1, with(1, uuid0))}},
		"it waits for an empty GPU":   {pod: made("a", 1, unbound, annotated(policyKey, "exclusive"), annotated(uuidKey, uuid0)), others: []*v1.Pod{made("b", 1, with(1, uuid0))}},
		"it waits for one kept alone": {pod: made("a", 1, unbound, annotated(uuidKey, uuid0)), others: []*v1.Pod{made("b", 1, with(1, uuid0), annotated(policyKey, "exclusive"))}},
		"it waits for one that is":    {pod: made("a", 1, unbound, annotated(policyKey, "exclusive"), annotated(uuidKey, uuid0)), want: []string{"waits although it fits on n"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pods := read(t, append(tc.others, tc.pod)...)
			want(t, checkRest(nodes, pods, pods[len(pods)-1], tc.held, tc.living), tc.want...)
		})
	}
}

func TestCheckOrphans(t *testing.T) {
	pods := read(t, made("a", 1, with(1, uuid0)), made("b", 1, with(1, uuid0), ended))
	held := map[string][]holding{
		"n": {{"ns/a", "main", []string{"00000000-0"}}, {"ns/b", "main", []string{"00000000-1"}}},
		"m": {{"ns/a", "main", []string{"22222222-0"}}},
	}
	want(t, checkOrphans(pods, held),
		"leaked: the kubelet of m allocated [22222222-0] to ns/a/main, which does not exist",
		"leaked: the kubelet of n allocated [00000000-1] to ns/b/main, which does not exist")
}

func TestFitting(t *testing.T) {
	pinned := func(uuid string) func(*v1.Pod) { return annotated(uuidKey, uuid) }
	two, exclusive := annotated(countKey, "2"), annotated(policyKey, "exclusive")
	on := func(node string) func(*v1.Pod) { return func(in *v1.Pod) { in.Spec.NodeName = node } }
	tests := map[string]struct {
		nodes  func([]node)
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
		"a GPU is not healthy":         {pod: made("p", 1, unbound, pinned(uuid0)), nodes: func(all []node) { all[0].gpus[0].healthy = false }},
		"the node takes none":          {pod: made("p", 1, unbound), nodes: func(all []node) { all[0].takesPods = false }, want: []string{"m"}},
		"the kubelet offers less":      {pod: made("p", 3, unbound, pinned(uuid1)), nodes: func(all []node) { all[0].units = 5 }, others: []*v1.Pod{made("a", 3, with(3, uuid0))}},
		"a bound pod is on no GPU yet": {pod: made("p", 1, unbound), others: []*v1.Pod{made("a", 1)}, want: []string{"m"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var copied []node
			for _, h := range nodes {
				h.gpus = slices.Clone(h.gpus)
				copied = append(copied, h)
			}
			if tc.nodes != nil {
				tc.nodes(copied)
			}
			pods := read(t, append(tc.others, tc.pod)...)
			if diff := cmp.Diff(tc.want, fitting(copied, pods, pods[len(pods)-1])); diff != "" {
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
	for _, p := range idlePods(nodes, pods) {
		got = append(got, p.name)
	}
	if diff := cmp.Diff([]string{"ns/fits", "ns/starts"}, got); diff != "" {
		t.Errorf("pods that fit and do not run (-want +got):\n%s", diff)
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
	want := map[string]string{"a-uid": "ns/a", "b-uid": "ns/b", "c-uid": "kube-system/c"}
	if diff := cmp.Diff(want, lastDump(lines)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestJournalAround(t *testing.T) {
	now := time.Now()
	j := &journal{entries: []entry{
		{now.Add(-31 * time.Second), "ns/a", "long before"},
		{now.Add(-time.Second), "ns/a", "bound"},
		{now.Add(-time.Second), "ns/b", "of another"},
		{now, "", "kill -9 etcd"},
		{now.Add(time.Second), "ns/a", "gone"},
		{now.Add(6 * time.Second), "ns/a", "long after"},
	}}
	want := []string{"-1.0 s  ns/a bound", "+0.0 s  kill -9 etcd", "+1.0 s  ns/a gone"}
	var got []string
	for line := range strings.Lines(j.around(now, []string{"ns/a"})) {
		got = append(got, strings.TrimSpace(line))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("around (-want +got):\n%s", diff)
	}
}

func TestWatcherCountsEachViolationOnce(t *testing.T) {
	w := &watcher{bench: &bench{log: io.Discard, journal: &journal{}}, known: make(map[string]bool)}
	f := finding{promise: "I2", text: "too much"}
	w.add(f, f)
	w.add(f, finding{promise: "I4", text: "none"})
	if w.count() != 2 || w.count("I2") != 1 || w.count("I1", "I5") != 0 {
		t.Errorf("%d violations, %d of I2, %d of I1 and I5; want 2, 1, 0", w.count(), w.count("I2"), w.count("I1", "I5"))
	}
	if text, err := w.report(); err == nil || !strings.Contains(text, "violation: I2: too much") {
		t.Errorf("report: %v\n%s", err, text)
	}
}
