package chaos

import (
	"fmt"
	"strings"
	"testing"

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
	nodes = hosts{
		{name: "n", takes: true, units: 8, gpus: devices{{"n", uuid0, 0, 4, true}, {"n", uuid1, 1, 4, true}}},
		{name: "m", takes: true, units: 8, gpus: devices{{"m", uuid2, 0, 8, true}}},
	}
	all = nodes.devices()
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
		p, ok := podOf(one)
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

func TestPodOfCountsContainersAsTheKubeletDoes(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	p := read(t, made("a", 2, with(7, uuid0), func(in *v1.Pod) {
		sidecar := stack.SampleContainer("sidecar", 1)
		sidecar.RestartPolicy = &always
		in.Spec.InitContainers = []v1.Container{stack.SampleContainer("first", 6), sidecar, stack.SampleContainer("second", 6)}
		in.Spec.Containers = append(in.Spec.Containers, stack.SampleContainer("none", 0))
	}))[0]
	if p.need != 7 || p.count != 1 || p.touched {
		t.Errorf("need %d of %d GPUs, touched %t; want 7 of 1, untouched", p.need, p.count, p.touched)
	}
	if diff := cmp.Diff(map[string]int64{"first": 6, "sidecar": 1, "second": 6, "main": 2}, p.containers); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if _, ok := podOf(made("b", 0)); ok {
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
			want: []string{"I1: the kubelet of n has given 00000000-0 to ns/a/main and ns/b/main"},
		},
		"a unit past the end":  {held: []holding{{"ns/a", "main", []string{"00000000-4"}}}, want: []string{"I1: the kubelet of n has given 00000000-4, which is no unit"}},
		"a unit below the end": {held: []holding{{"ns/a", "main", []string{"00000000--1"}}}, want: []string{"no unit of its GPUs"}},
		"another node's":       {held: []holding{{"ns/a", "main", []string{"22222222-0"}}}, want: []string{"no unit of its GPUs"}},
		"no ID":                {held: []holding{{"ns/a", "main", []string{"nvidia0"}}}, want: []string{"no unit of its GPUs"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { want(t, checkHeld(all, "n", tc.held), tc.want...) })
	}
}

func TestCheckLiving(t *testing.T) {
	a, b, c := lives("a", "main", 3072, uuid0), lives("b", "main", 1024, uuid0, uuid1), lives("c", "main", 1024, uuid0)
	if got := checkLiving(all, []process{a, b}, nil); len(got) > 0 {
		t.Errorf("%v for what just fits", got)
	}
	for forced, want := range map[types.UID]bool{"none": false, "c-uid": true, "b-uid": true} {
		got := checkLiving(all, []process{a, b, c}, map[types.UID]bool{forced: true})
		if len(got) != 1 || got[0].forced != want || !strings.Contains(got[0].text, "processes that live on "+uuid0+" of n have grants for 5120 MiB of 4096") {
			t.Errorf("with %s deleted by force: %+v, want one crowd, excused %t", forced, got, want)
		}
	}
}

func TestCheckShares(t *testing.T) {
	tests := map[string]struct {
		pods    []*v1.Pod
		want    []string
		lenient bool
	}{
		"full":                       {pods: []*v1.Pod{made("a", 3, with(3, uuid0)), made("b", 1, with(1, uuid0)), made("c", 4, with(4, uuid1))}},
		"what has ended is free":     {pods: []*v1.Pod{made("a", 3, with(3, uuid0), ended), made("b", 4, with(4, uuid0))}},
		"what is bound to no node":   {pods: []*v1.Pod{made("a", 3, with(3, uuid0), unbound), made("b", 4, with(4, uuid0))}},
		"too much":                   {pods: []*v1.Pod{made("a", 3, with(3, uuid0)), made("b", 2, with(2, uuid0))}, want: []string{"I2: " + uuid0 + " of n has 4 units and gives 5: ns/a (a-uid) 3; ns/b (b-uid) 2"}},
		"too much for now":           {pods: []*v1.Pod{made("a", 3, with(3, uuid0)), made("b", 2, with(2, uuid0), corrected)}, want: []string{"I2: "}, lenient: true},
		"too much on two GPUs":       {pods: []*v1.Pod{made("a", 10, with(5, uuid0, uuid1), annotated(countKey, "2"))}, want: []string{"I2: " + uuid0, "I2: " + uuid1}},
		"too much on the other node": {pods: []*v1.Pod{made("a", 9, with(9, uuid2), func(in *v1.Pod) { in.Spec.NodeName = "m" })}, want: []string{"of m has 8 units and gives 9"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := checkShares(all, read(t, tc.pods...))
			want(t, got, tc.want...)
			for _, f := range got {
				if f.lenient != tc.lenient {
					t.Errorf("%v: lenient %t, want %t", f, f.lenient, tc.lenient)
				}
			}
		})
	}
}

func TestCheckAssignment(t *testing.T) {
	two := annotated(countKey, "2")
	tests := map[string]struct {
		pod     *v1.Pod
		want    []string
		lenient bool
	}{
		"one GPU":              {pod: made("a", 3, with(3, uuid0))},
		"two GPUs":             {pod: made("a", 4, two, with(2, uuid0, uuid1))},
		"none":                 {pod: made("a", 3), want: []string{"I4: pod ns/a (a-uid) on n: it has no assignment"}},
		"none yet":             {pod: made("a", 3, func(in *v1.Pod) { in.Labels[shapeLabel] = direct }), want: []string{"it has no assignment"}, lenient: true},
		"none and not bound":   {pod: made("a", 3, unbound)},
		"none and ended":       {pod: made("a", 3, ended)},
		"broken":               {pod: made("a", 3, annotated(assignmentKey, "{")), want: []string{"cannot be read"}},
		"another version":      {pod: made("a", 3, annotated(assignmentKey, `{"v":2,"unitMiB":1024}`)), want: []string{"is of version 2"}},
		"another unit":         {pod: made("a", 3, annotated(assignmentKey, `{"v":1,"unitMiB":1}`)), want: []string{"units of 1 MiB"}},
		"too few GPUs":         {pod: made("a", 4, two, with(4, uuid0)), want: []string{"it has 1 GPUs and asks for 2"}},
		"a GPU twice":          {pod: made("a", 4, two, with(2, uuid0, uuid0)), want: []string{"it has a GPU twice"}},
		"another node's GPU":   {pod: made("a", 3, with(3, uuid2)), want: []string{"its node has no GPU " + uuid2}},
		"fewer units":          {pod: made("a", 3, with(2, uuid0)), want: []string{"it asks for 3 units of 1 GPUs and has 2 of " + uuid0}},
		"more units of two":    {pod: made("a", 4, two, with(4, uuid0, uuid1)), want: []string{"it asks for 4 units of 2 GPUs and has 4"}},
		"corrected, yet wrong": {pod: made("a", 3, with(3, uuid2), corrected), want: []string{"its node has no GPU"}, lenient: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := checkAssignment(all, read(t, tc.pod)[0])
			want(t, got, tc.want...)
			if len(got) > 0 && got[0].lenient != tc.lenient {
				t.Errorf("lenient %t, want %t", got[0].lenient, tc.lenient)
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
		"written is other": {pod: made("a", 3, with(3, uuid1)), held: []holding{given}, living: []process{seen}, want: []string{"I5: pod ns/a (a-uid) is to have [" + uuid1 + "], and the kubelet has given container main units of [" + uuid0 + "]", "and container a-main sees [" + uuid0 + "]"}},
		"given is less":    {pod: made("a", 4, with(4, uuid0)), held: []holding{given}, living: []process{lives("a", "main", 4096, uuid0)}, want: []string{"container main asks for 4 units of 1 GPUs, and the kubelet has given 3 of " + uuid0}},
		"seen is more":     {pod: made("a", 3, with(3, uuid0)), held: []holding{given}, living: []process{lives("a", "main", 4096, uuid0)}, want: []string{"sees a limit of 4096 MiB"}},
		"given is none":    {pod: made("a", 3, with(3, uuid0)), living: []process{seen}, want: []string{"container main runs, and the kubelet has given it nothing"}},
		"seen is none":     {pod: made("a", 3, with(3, uuid0)), held: []holding{given}, want: []string{"container main runs, and no process in it sees a grant"}},

		"it does not run":             {pod: made("a", 3, with(3, uuid0), notReady), want: []string{"stuck: pod ns/a (a-uid) is bound to n and does not run"}},
		"it fails again and again":    {pod: made("a", 3, with(3, uuid0), notReady, shaped(restarts))},
		"it has ended":                {pod: made("a", 3, with(3, uuid0), ended)},
		"it does not go":              {pod: made("a", 3, with(3, uuid0), func(in *v1.Pod) { in.DeletionTimestamp = &metav1.Time{} }), want: []string{"still being deleted"}},
		"nobody looks at it":          {pod: made("a", 3, unbound, func(in *v1.Pod) { in.Status.Conditions = nil }), want: []string{"nobody says why"}},
		"it waits with room":          {pod: made("a", 8, unbound), want: []string{"stuck: pod ns/a (a-uid) waits although m has room for it: no room"}},
		"it waits without":            {pod: made("a", 9, unbound)},
		"it waits for two with room":  {pod: made("a", 8, unbound, annotated(countKey, "2")), want: []string{"waits although n has room for it"}},
		"it waits for two without":    {pod: made("a", 8, unbound, annotated(countKey, "2")), others: []*v1.Pod{made("b", 1, with(1, uuid0))}},
		"it waits for an empty GPU":   {pod: made("a", 1, unbound, annotated(policyKey, "exclusive"), annotated(uuidKey, uuid0)), others: []*v1.Pod{made("b", 1, with(1, uuid0))}},
		"it waits for one kept alone": {pod: made("a", 1, unbound, annotated(uuidKey, uuid0)), others: []*v1.Pod{made("b", 1, with(1, uuid0), annotated(policyKey, "exclusive"))}},
		"it waits for one that is":    {pod: made("a", 1, unbound, annotated(policyKey, "exclusive"), annotated(uuidKey, uuid0)), want: []string{"waits although n has room"}},
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
		"leaked: the kubelet of m has given [22222222-0] to ns/a/main, which is not there",
		"leaked: the kubelet of n has given [00000000-1] to ns/b/main, which is not there")
}
