package api

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

func names(t testing.TB) Names {
	t.Helper()
	n, err := NewNames(DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// container returns a container with limits, such as "gpu-mem", "3".
func container(name string, limits ...string) v1.Container {
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{}}}
	for i := 0; i < len(limits); i += 2 {
		c.Resources.Limits[v1.ResourceName("gpumem.dev/"+limits[i])] = resource.MustParse(limits[i+1])
	}
	return c
}

func onlyRequests(c v1.Container) v1.Container {
	c.Resources.Requests, c.Resources.Limits = c.Resources.Limits, nil
	return c
}

func sidecar(c v1.Container) v1.Container {
	always := v1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func pod(containers ...v1.Container) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid", Annotations: map[string]string{}},
		Spec:       v1.PodSpec{Containers: containers},
	}
}

// bound has the condition that a Binding sets.
var bound = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}

// annotated sets annotations, such as "policy", "spread".
func annotated(p *v1.Pod, values ...string) *v1.Pod {
	for i := 0; i < len(values); i += 2 {
		p.Annotations["gpumem.dev/"+values[i]] = values[i+1]
	}
	return p
}

func withInit(p *v1.Pod, containers ...v1.Container) *v1.Pod {
	p.Spec.InitContainers = containers
	return p
}

func TestRequestAmounts(t *testing.T) {
	app := func(units gpu.Units) []placement.Container {
		return []placement.Container{{Name: "c", Kind: placement.App, Units: units}}
	}
	tests := map[string]struct {
		pod     *v1.Pod
		want    []placement.Container
		wantErr string
	}{
		"a limit":                          {pod: pod(container("c", "gpu-mem", "3")), want: app(3)},
		"requests alone":                   {pod: pod(onlyRequests(container("c", "gpu-mem", "3"))), want: app(3)},
		"another way to write it":          {pod: pod(container("c", "gpu-mem", "3000m")), want: app(3)},
		"thousands":                        {pod: pod(container("c", "gpu-mem", "1k")), want: app(1000)},
		"nothing":                          {pod: pod(container("c"))},
		"zero is nothing":                  {pod: pod(container("c", "gpu-mem", "0"))},
		"zero of both is nothing":          {pod: pod(container("c", "gpu-mem", "0", "gpu-core", "0"))},
		"another domain":                   {pod: pod(v1.Container{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}})},
		"no containers at all":             {pod: &v1.Pod{}},
		"negative":                         {pod: pod(container("c", "gpu-mem", "-1")), wantErr: `container "c": gpumem.dev/gpu-mem is -1, want 0 or more`},
		"a fraction":                       {pod: pod(container("c", "gpu-mem", "500m")), wantErr: `container "c": gpumem.dev/gpu-mem is 500m, want a whole number`},
		"more than a fraction":             {pod: pod(container("c", "gpu-mem", "1.5")), wantErr: "is 1500m, want a whole number"},
		"enormous":                         {pod: pod(container("c", "gpu-mem", "8E")), wantErr: "want a whole number up to"},
		"beyond all numbers":               {pod: pod(container("c", "gpu-mem", "1e300")), wantErr: "want a whole number up to"},
		"beyond all numbers, negative":     {pod: pod(container("c", "gpu-mem", "-1e300")), wantErr: "gpu-mem is"},
		"a sum that would overflow":        {pod: pod(container("a", "gpu-mem", "9223372036854775807"), container("b", "gpu-mem", "1")), wantErr: `container "a"`},
		"cores without memory":             {pod: pod(container("c", "gpu-core", "30")), wantErr: `container "c": gpumem.dev/gpu-core needs gpumem.dev/gpu-mem too`},
		"cores are whole too":              {pod: pod(container("c", "gpu-mem", "1", "gpu-core", "1.5")), wantErr: "gpu-core is 1500m"},
		"an init container that is broken": {pod: withInit(pod(container("c", "gpu-mem", "1")), container("i", "gpu-mem", "-1")), wantErr: `container "i"`},
		"kinds and order": {
			pod: withInit(pod(container("a", "gpu-mem", "1", "gpu-core", "30"), container("none"), container("b", "gpu-mem", "2")),
				sidecar(container("s", "gpu-mem", "1")), container("i", "gpu-mem", "3"), sidecar(container("none"))),
			want: []placement.Container{
				{Name: "s", Kind: placement.Sidecar, Units: 1}, {Name: "i", Kind: placement.Init, Units: 3},
				{Name: "a", Kind: placement.App, Units: 1, Cores: 30}, {Name: "b", Kind: placement.App, Units: 2},
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := names(t).Request(tc.pod)
			checkError(t, err, tc.wantErr)
			if diff := cmp.Diff(placement.Request{Containers: placement.NewContainers(tc.want...)}, got); diff != "" {
				t.Errorf("Request (-want +got):\n%s", diff)
			}
		})
	}
}

// The API server accepts amounts such as 1e999999, and formatting one takes a megabyte.
func TestEnormousAmountsCostNothing(t *testing.T) {
	for _, amount := range []string{"1e999999", "-1e999999", "999e999999"} {
		for _, name := range []string{"gpu-mem", "gpu-core"} {
			n, p := names(t), pod(container("c", name, amount))
			_, err := n.Request(p)
			checkError(t, err, "gpumem.dev/"+name+" is ")
			least := leastAllocated(func() { _, _ = n.Request(p) })
			if least > 200_000 {
				t.Errorf("%s: %s: %d bytes to read it, want no more than 200000", name, amount, least)
			}
		}
	}
}

// leastAllocated returns the bytes that a call of f allocates, as the minimum of ten calls: the runtime counts
// for the whole process, and other goroutines allocate during some of the calls.
func leastAllocated(f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

func TestRequestAnnotations(t *testing.T) {
	tests := map[string]struct {
		annotations []string
		units       string // of the container; default: 12
		init        string
		want        func(*placement.Request)
		wantErr     string
	}{
		"none":                        {want: func(*placement.Request) {}},
		"of others":                   {annotations: []string{"other", "x"}, want: func(*placement.Request) {}},
		"a count":                     {annotations: []string{"gpu-count", "3"}, want: func(r *placement.Request) { r.Count = 3 }},
		"a count of one":              {annotations: []string{"gpu-count", "1"}, want: func(r *placement.Request) { r.Count = 1 }},
		"a count of none":             {annotations: []string{"gpu-count", "0"}, wantErr: `annotation gpumem.dev/gpu-count: "0": want a number of GPUs from 1 to 64`},
		"a negative count":            {annotations: []string{"gpu-count", "-1"}, wantErr: "from 1 to 64"},
		"too high a count":            {annotations: []string{"gpu-count", "65"}, wantErr: "from 1 to 64"},
		"a count beyond all numbers":  {annotations: []string{"gpu-count", "99999999999999999999"}, wantErr: "from 1 to 64"},
		"a count that is a word":      {annotations: []string{"gpu-count", "two"}, wantErr: "from 1 to 64"},
		"an empty count":              {annotations: []string{"gpu-count", ""}, wantErr: "from 1 to 64"},
		"a count beyond the units":    {annotations: []string{"gpu-count", "16"}, wantErr: `"16": container "c" asks for 12, which does not divide evenly over 16 GPUs: ask for 16`},
		"a count that does not share": {annotations: []string{"gpu-count", "5"}, wantErr: `"5": container "c" asks for 12, which does not divide evenly over 5 GPUs: ask for 10 or 15`},
		"a count with a small app after a large init container": {
			annotations: []string{"gpu-count", "2"}, init: "14",
			wantErr: `"2": container "c" asks for 12 units, fewer than the 14 that its init containers leave, which the kubelet would not take evenly from 2 GPUs: ask for 14 there, or for less in the init containers`,
		},
		"a count with a large app after a small init container": {
			annotations: []string{"gpu-count", "2"}, init: "10", want: func(r *placement.Request) { r.Count = 2 },
		},
		"a preference for speed":         {annotations: []string{"gpu-model-preference", "fastest"}, want: func(r *placement.Request) { r.Preference = placement.Fastest }},
		"a preference for price":         {annotations: []string{"gpu-model-preference", "cheapest"}, want: func(r *placement.Request) { r.Preference = placement.Cheapest }},
		"another preference":             {annotations: []string{"gpu-model-preference", "newest"}, wantErr: `annotation gpumem.dev/gpu-model-preference: "newest": want fastest or cheapest`},
		"an empty preference":            {annotations: []string{"gpu-model-preference", ""}, wantErr: "want fastest or cheapest"},
		"binpack":                        {annotations: []string{"policy", "binpack"}, want: func(r *placement.Request) { r.Policy = placement.Binpack }},
		"spread":                         {annotations: []string{"policy", "spread"}, want: func(r *placement.Request) { r.Policy = placement.Spread }},
		"exclusive":                      {annotations: []string{"policy", "exclusive"}, want: func(r *placement.Request) { r.Policy = placement.Exclusive }},
		"another policy":                 {annotations: []string{"policy", "Spread"}, wantErr: `annotation gpumem.dev/policy: policy "Spread": want binpack, spread or exclusive`},
		"an empty policy":                {annotations: []string{"policy", ""}, wantErr: "want binpack, spread or exclusive"},
		"models":                         {annotations: []string{"gpu-model", "A100*, !A100-SXM4-80GB"}, want: func(r *placement.Request) { r.Models = placement.NewGlobs("A100*", "!A100-SXM4-80GB") }},
		"an empty list of models":        {annotations: []string{"gpu-model", ""}, wantErr: `annotation gpumem.dev/gpu-model: "": want a list of globs`},
		"a list with a gap":              {annotations: []string{"gpu-model", "A100,,T4"}, wantErr: "want a list of globs"},
		"an exclusion of nothing":        {annotations: []string{"gpu-model", "!"}, wantErr: "want a list of globs"},
		"a malformed glob":               {annotations: []string{"gpu-model", "A[100"}, wantErr: "want a list of globs"},
		"a glob that its folding breaks": {annotations: []string{"gpu-model", "A1[ -z]"}, wantErr: "want a list of globs"},
		"too many globs":                 {annotations: []string{"gpu-model", strings.Repeat("a,", 32) + "a"}, wantErr: "a list of 33 globs, want 32 at most"},
		"as many globs as may be":        {annotations: []string{"gpu-uuid", strings.Repeat("a,", 31) + "a"}, want: func(r *placement.Request) { r.UUIDs = placement.NewGlobs(slices.Repeat([]string{"a"}, 32)...) }},
		"too long a list":                {annotations: []string{"gpu-model", strings.Repeat("a*", 600)}, wantErr: "a list of globs of 1200 bytes, want 1024 at most"},
		"UUIDs":                          {annotations: []string{"gpu-uuid", "GPU-1,GPU-2*"}, want: func(r *placement.Request) { r.UUIDs = placement.NewGlobs("GPU-1", "GPU-2*") }},
		"a malformed UUID":               {annotations: []string{"gpu-uuid", "\\"}, wantErr: "annotation gpumem.dev/gpu-uuid"},
		"a group":                        {annotations: []string{"gpu-group", "g"}, want: func(r *placement.Request) { r.Group = placement.Group{Namespace: "ns", Name: "g"} }},
		"an empty group":                 {annotations: []string{"gpu-group", ""}, wantErr: `annotation gpumem.dev/gpu-group: "": want a name`},
		"an exclusive group":             {annotations: []string{"exclusive-group", "g"}, want: func(r *placement.Request) { r.ExclusiveGroup = placement.Group{Namespace: "ns", Name: "g"} }},
		"an empty exclusive group":       {annotations: []string{"exclusive-group", ""}, wantErr: "annotation gpumem.dev/exclusive-group"},
		"an enforcement":                 {annotations: []string{"enforcement", "mps"}, want: func(r *placement.Request) { r.Enforcement = gpu.EnforcementMPS }},
		"an enforcement of nothing":      {annotations: []string{"enforcement", "strict"}, wantErr: `annotation gpumem.dev/enforcement: enforcement "strict": want advisory, mps or kernel`},
		"annotations of a pod that asks for nothing are not read": {
			annotations: []string{"policy", "?"}, units: "0", want: func(r *placement.Request) { r.Containers = placement.Containers{} },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			units := "12"
			if tc.units != "" {
				units = tc.units
			}
			p := annotated(pod(container("c", "gpu-mem", units)), tc.annotations...)
			want := placement.Request{Containers: placement.NewContainers(placement.Container{Name: "c", Kind: placement.App, Units: 12})}
			if tc.init != "" {
				withInit(p, container("i", "gpu-mem", tc.init))
				q := resource.MustParse(tc.init)
				want.Containers = placement.NewContainers(append([]placement.Container{{Name: "i", Kind: placement.Init, Units: gpu.Units(q.Value())}}, want.Containers.All()...)...)
			}
			got, err := names(t).Request(p)
			checkError(t, err, tc.wantErr)
			if tc.want == nil {
				want = placement.Request{}
			} else {
				tc.want(&want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Request (-want +got):\n%s", diff)
			}
		})
	}
}

// Groups of different namespaces are unrelated: a name does not affect pods of another namespace.
func TestGroupsAreOfANamespace(t *testing.T) {
	read := func(namespace, key string) placement.Request {
		p := annotated(pod(container("c", "gpu-mem", "1")), key, "prod")
		p.Namespace = namespace
		r, err := names(t).Request(p)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, key := range []string{"gpu-group", "exclusive-group"} {
		if mine := read("mine", key); !cmp.Equal(mine, read("mine", key)) || cmp.Equal(mine, read("theirs", key)) {
			t.Errorf("%s prod is the same in two namespaces, or differs within one", key)
		}
	}
}

func assignmentOf(uuids ...string) string {
	var gpus []string
	for _, u := range uuids {
		gpus = append(gpus, fmt.Sprintf(`{"uuid":%q,"index":0,"units":1}`, u))
	}
	return `{"v":1,"unitMiB":1024,"gpus":[` + strings.Join(gpus, ",") + `]}`
}

// A pod's amounts come from its spec, whatever its annotations contain. A test on a cluster checks the chart's
// admission policy with the same table.
func TestWhichAnnotationsCanBeRead(t *testing.T) {
	for key, tc := range readCases(t) {
		for _, value := range tc.Taken {
			if _, err := names(t).Request(annotated(pod(container("c", "gpu-mem", "64")), key, value)); err != nil {
				t.Errorf("%s %q: %v", key, value, err)
			}
		}
		want, _, _ := strings.Cut(tc.Want, ", 32 of them") // readGlobs reports the limits separately
		for _, value := range tc.Refused {
			if _, err := names(t).Request(annotated(pod(container("c", "gpu-mem", "64")), key, value)); err == nil || !strings.Contains(err.Error(), "want "+want) {
				t.Errorf("%s %q: %v, want %s", key, value, err, want)
			}
		}
	}
	for value, taken := range map[string]bool{
		strings.Repeat("x", 1024): true, strings.Repeat("x", 1025): false, strings.Repeat("é", 512): true, strings.Repeat("é", 513): false,
		strings.Repeat("x,", 31) + "x": true, strings.Repeat("x,", 32) + "x": false,
	} {
		if _, err := names(t).Request(annotated(pod(container("c", "gpu-mem", "1")), "gpu-model", value)); err == nil != taken {
			t.Errorf("globs of %d bytes: %v", len(value), err)
		}
	}
	if r, err := names(t).Request(annotated(pod(container("c", "gpu-mem", "0")), "gpu-count", "two")); err != nil || !r.Empty() {
		t.Errorf("a pod that asks for no unit of it: %v, %v", r, err)
	}
}

func TestHolding(t *testing.T) {
	mem := func(units string) *v1.Pod { return pod(container("c", "gpu-mem", units)) }
	tests := map[string]struct {
		pod        *v1.Pod
		wantUnits  gpu.Units
		wantPolicy placement.Policy
		want       []placement.Share
		wantErr    string
	}{
		"a pod with its assignment": {
			pod: annotated(mem("3"), "assignment", assignmentOf("GPU-1")), wantUnits: 3, want: []placement.Share{{Device: "GPU-1", Units: 3}},
		},
		"a pod without an assignment": {pod: mem("3"), wantUnits: 3},
		"an assignment of fewer units than are asked for": {
			pod: annotated(mem("30"), "assignment", assignmentOf("GPU-1")), wantUnits: 30, want: []placement.Share{{Device: "GPU-1", Units: 30}},
		},
		"an assignment of more GPUs than are asked for": {
			pod: annotated(mem("30"), "assignment", assignmentOf("GPU-1", "GPU-2")), wantUnits: 30, wantErr: "names 2 GPUs, and the pod asks for 1",
		},
		"an assignment of fewer GPUs than are asked for": {
			pod: annotated(mem("30"), "gpu-count", "2", "assignment", assignmentOf("GPU-1")), wantUnits: 30, wantErr: "names 1 GPUs, and the pod asks for 2",
		},
		"an assignment that cannot be read": {
			pod: annotated(mem("3"), "assignment", "GPU-1"), wantUnits: 3, wantErr: "annotation gpumem.dev/assignment: malformed value",
		},
		"an assignment of two GPUs beside a policy that cannot be read": {
			pod: annotated(mem("30"), "gpu-count", "2", "policy", "?", "assignment", assignmentOf("GPU-1", "GPU-2")), wantUnits: 30, wantPolicy: placement.Exclusive,
			want: []placement.Share{{Device: "GPU-1", Units: 15}, {Device: "GPU-2", Units: 15}}, wantErr: "annotation gpumem.dev/policy",
		},
		"a number of GPUs that cannot be read": {
			pod: annotated(mem("30"), "gpu-count", "two", "policy", "spread", "assignment", assignmentOf("GPU-1", "GPU-2")), wantUnits: 30, wantPolicy: placement.Spread,
			wantErr: "names 2 GPUs, and the number that the pod asks for is malformed",
		},
		"an annotation that cannot be read": {
			pod: annotated(mem("3"), "policy", "?", "assignment", assignmentOf("GPU-1")), wantUnits: 3, wantPolicy: placement.Exclusive,
			want: []placement.Share{{Device: "GPU-1", Units: 3}}, wantErr: "annotation gpumem.dev/policy",
		},
		"a container beside one that cannot be read": {
			pod: pod(container("c", "gpu-mem", "5"), container("d", "gpu-core", "30")), wantUnits: 5, wantErr: `container "d"`,
		},
		"a container after one that cannot be read": {
			pod: pod(container("c", "gpu-mem", "-5"), container("d", "gpu-mem", "4")), wantUnits: 4, wantErr: `container "c"`,
		},
		"a container whose cores cannot be read": {
			pod: pod(container("c", "gpu-mem", "5", "gpu-core", "-1")), wantUnits: 5, wantErr: "gpu-core is -1",
		},
		"a policy that cannot be read of a pod that is on no known GPU": {
			pod: annotated(mem("3"), "policy", "?"), wantUnits: 3, wantErr: "annotation gpumem.dev/policy",
		},
		"a policy of a pod that asks for nothing": {pod: annotated(mem("0"), "policy", "spread")},
		"an assignment of a pod that asks for nothing holds no GPU": {
			pod: annotated(mem("0"), "assignment", assignmentOf("GPU-1")),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.pod.Status.Conditions = bound
			got, err := names(t).Holding(tc.pod)
			checkError(t, err, tc.wantErr)
			if got.Request.Units() != tc.wantUnits {
				t.Errorf("%d units are held, want %d", got.Request.Units(), tc.wantUnits)
			}
			if got.Request.Policy != tc.wantPolicy {
				t.Errorf("policy %q, want %q", got.Request.Policy, tc.wantPolicy)
			}
			if diff := cmp.Diff(tc.want, got.Assignment.Shares); diff != "" {
				t.Errorf("shares (-want +got):\n%s", diff)
			}
			if want := (placement.PodRef{Namespace: "ns", Name: "p", UID: "uid"}); got.Pod != want {
				t.Errorf("pod %+v, want %+v", got.Pod, want)
			}
		})
	}
}

// An assignment that the owner of a pod writes together with spec.nodeName is ignored until admission.
func TestWhoseWordAnAssignmentIs(t *testing.T) {
	began := metav1.NewTime(time.Unix(7, 0))
	condition := func(kind v1.PodConditionType, status v1.ConditionStatus) []v1.PodCondition {
		return []v1.PodCondition{{Type: kind, Status: status}}
	}
	for name, tc := range map[string]struct {
		status v1.PodStatus
		want   bool
	}{
		"its owner has sent it to the node":       {v1.PodStatus{}, false},
		"a scheduler says it that is behind":      {v1.PodStatus{Conditions: condition(v1.PodScheduled, v1.ConditionFalse)}, true},
		"it has another condition":                {v1.PodStatus{Conditions: condition(Reserved, v1.ConditionTrue)}, false},
		"a Binding has brought it":                {v1.PodStatus{Conditions: bound}, true},
		"the kubelet has admitted it":             {v1.PodStatus{StartTime: &began}, true},
		"the kubelet has refused it, or it ended": {v1.PodStatus{Phase: v1.PodFailed}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := annotated(pod(container("c", "gpu-mem", "3")), "assignment", assignmentOf("GPU-1"))
			p.Spec.NodeName, p.Status = "node", tc.status
			for _, p := range []*v1.Pod{p, {ObjectMeta: p.ObjectMeta, Spec: p.Spec, Status: v1.PodStatus{Phase: p.Status.Phase, StartTime: p.Status.StartTime, Conditions: Conditions(p)}}} {
				h, err := names(t).Holding(p)
				checkError(t, err, "")
				if got := !h.Assignment.None(); got != tc.want || h.Request.Units() != 3 {
					t.Errorf("believed: %t, want %t; %d units", got, tc.want, h.Request.Units())
				}
			}
		})
	}
}

// After admission, the number of GPUs that the kubelet has allocated overrides the requested number. The total
// amount still comes from the spec.
func TestWhatIsHeldStandsAboveTheNumberOfGPUs(t *testing.T) {
	began := metav1.NewTime(time.Unix(7, 0))
	held := strings.Replace(assignmentOf("GPU-1"), `{"v":1,`, `{"v":1,"held":true,`, 1)
	for name, tc := range map[string]struct {
		assignment, count string
		status            v1.PodStatus
		want              []placement.Share
		wantErr           string
	}{
		"the number was changed":        {held, "8", v1.PodStatus{StartTime: &began}, []placement.Share{{Device: "GPU-1", Units: 16}}, ""},
		"it cannot be read any more":    {held, "x", v1.PodStatus{StartTime: &began}, []placement.Share{{Device: "GPU-1", Units: 16}}, "want a number of GPUs"},
		"the mark was taken away":       {assignmentOf("GPU-1"), "8", v1.PodStatus{StartTime: &began}, nil, "names 1 GPUs, and the pod asks for 8"},
		"the kubelet has given nothing": {held, "8", v1.PodStatus{Conditions: bound}, nil, "names 1 GPUs, and the pod asks for 8"},
	} {
		t.Run(name, func(t *testing.T) {
			p := annotated(pod(container("c", "gpu-mem", "16")), "assignment", tc.assignment, "gpu-count", tc.count)
			p.Status = tc.status
			h, err := names(t).Holding(p)
			checkError(t, err, tc.wantErr)
			if diff := cmp.Diff(tc.want, h.Assignment.Shares); diff != "" || h.Request.Units() != 16 {
				t.Errorf("%d units, shares (-want +got):\n%s", h.Request.Units(), diff)
			}
		})
	}
}

// Preemption picks victims by the priority, the start and the termination in a holding.
func TestPriorities(t *testing.T) {
	began := metav1.NewTime(time.Unix(7, 0))
	p := annotated(pod(container("c", "gpu-mem", "3")), "policy", "?") // also with a malformed value
	p.Spec.Priority, p.Spec.NodeName = new(int32(100)), "node"
	p.Status.StartTime, p.Status.NominatedNodeName, p.DeletionTimestamp = &began, "node", &began
	h, err := names(t).Holding(p)
	checkError(t, err, "policy")
	if h.Request.Priority != 100 || !h.Started.Equal(began.Time) || !h.Terminating || h.Nominated {
		t.Errorf("%+v, want priority 100, started, terminating", h)
	}
	if got := Priority(&v1.Pod{}); got != 0 {
		t.Errorf("priority %d of a pod without one", got)
	}
}

func TestNomination(t *testing.T) {
	began := metav1.NewTime(time.Unix(7, 0))
	made := func(message string) v1.PodCondition {
		return v1.PodCondition{Type: Reserved, Status: v1.ConditionTrue, Message: message, LastTransitionTime: began}
	}
	on := func(ids ...gpu.UUID) (a placement.Assignment) {
		for _, id := range ids {
			a.Shares = append(a.Shares, placement.Share{Device: id, Units: 4})
		}
		return a
	}
	two := Reservation{Node: "made", GPUs: []gpu.UUID{"GPU-1", "GPU-2"}}.Condition(began.Time)
	one := Reservation{Node: "made", GPUs: []gpu.UUID{"GPU-1"}}.Condition(began.Time)
	ended := Reservation{Node: "made", GPUs: []gpu.UUID{"GPU-1"}}.Condition(began.Add(-ReservationTime))
	ahead := Reservation{Node: "made", GPUs: []gpu.UUID{"GPU-1"}}.Condition(began.Add(ReservationTime + time.Second))
	timeless := one
	timeless.LastTransitionTime = metav1.Time{}
	over := one
	over.Status = v1.ConditionFalse
	for name, tc := range map[string]struct {
		nominated  string
		conditions []v1.PodCondition
		bound      bool
		count      int
		want       string
		wantAt     placement.Assignment
	}{
		"not at all":                   {conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, Message: "no"}}, count: 1},
		"by kube-scheduler":            {nominated: "node", count: 1, want: "node"},
		"by people":                    {conditions: []v1.PodCondition{one}, count: 1, want: "made", wantAt: on("GPU-1")},
		"by people, to two GPUs":       {conditions: []v1.PodCondition{two}, count: 2, want: "made", wantAt: on("GPU-1", "GPU-2")},
		"by both":                      {nominated: "made", conditions: []v1.PodCondition{two}, count: 2, want: "made", wantAt: on("GPU-1", "GPU-2")},
		"by kube-scheduler to another": {nominated: "node", conditions: []v1.PodCondition{two}, count: 2, want: "node"},
		"to another number of GPUs":    {conditions: []v1.PodCondition{two}, count: 1, want: "made"},
		"in words of before":           {conditions: []v1.PodCondition{made("made GPU-1")}, count: 1},
		"by both, in such words":       {nominated: "node", conditions: []v1.PodCondition{made("node GPU-1")}, count: 1, want: "node"},
		"no more":                      {conditions: []v1.PodCondition{over}, count: 1},
		"a minute ago":                 {conditions: []v1.PodCondition{ended}, count: 1},
		"by a clock that is ahead":     {conditions: []v1.PodCondition{ahead}, count: 1},
		"at no time":                   {conditions: []v1.PodCondition{timeless}, count: 1},
		"and has a node":               {nominated: "node", conditions: []v1.PodCondition{two}, count: 2, bound: true},
	} {
		p := &v1.Pod{Status: v1.PodStatus{NominatedNodeName: tc.nominated, Conditions: tc.conditions}}
		if tc.bound {
			p.Spec.NodeName = "node"
		}
		req := placement.Request{Count: tc.count, Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: gpu.Units(4 * tc.count)})}
		node, at, until := Nomination(p, req, began.Add(time.Second))
		if diff := cmp.Diff(tc.wantAt, at); node != tc.want || diff != "" {
			t.Errorf("%s: to %q, want %q; GPUs (-want +got):\n%s", name, node, tc.want, diff)
		}
		if made := node == "made"; made != until.Equal(began.Add(ReservationTime)) || !made && !until.IsZero() {
			t.Errorf("%s: it ends at %v", name, until)
		}
		if p.DeletionTimestamp = &began; p.Spec.NodeName == "" {
			if node, at, _ := Nomination(p, req, began.Time); node != "" || !at.None() {
				t.Errorf("%s, and is being deleted: to %q, %v", name, node, at)
			}
		}
	}
}

func TestHoldsAndStates(t *testing.T) {
	n := names(t)
	for name, p := range map[string]*v1.Pod{
		"limit":             pod(container("c", "gpu-mem", "1")),
		"request":           pod(onlyRequests(container("c", "gpu-mem", "1"))),
		"init":              withInit(pod(), container("c", "gpu-mem", "1")),
		"in what is broken": pod(container("c", "gpu-mem", "-1")),
	} {
		if !n.Holds(p) {
			t.Errorf("%s: Holds = false", name)
		}
	}
	for name, p := range map[string]*v1.Pod{
		"nothing":                    {},
		"cores":                      pod(container("c", "gpu-core", "1")),
		"zero, as a LimitRange does": pod(container("c", "gpu-mem", "0")),
		"zero, written another way":  pod(container("c", "gpu-mem", "0e3")),
		"zero, in an init container": withInit(pod(), container("c", "gpu-mem", "0")),
	} {
		if n.Holds(p) {
			t.Errorf("%s: Holds = true", name)
		}
	}
	cores, bound := pod(container("c", "gpu-core", "1")), pod(container("c", "gpu-core", "1"))
	bound.Spec.NodeName = "n"
	if !n.Asks(cores) || n.Asks(bound) || n.Asks(pod(container("c"))) {
		t.Error("of pods without GPU memory, those ask that are on no node and ask for cores, and no others")
	}
	now := metav1.Now()
	for name, tc := range map[string]struct {
		pod               v1.Pod
		terminal, settled bool
	}{
		"pending":                {v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending}}, false, false},
		"admitted":               {v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending, StartTime: &now}}, false, true},
		"succeeded":              {v1.Pod{Status: v1.PodStatus{Phase: v1.PodSucceeded}}, true, true},
		"refused by the kubelet": {v1.Pod{Status: v1.PodStatus{Phase: v1.PodFailed}}, true, true},
		"being deleted, still runs": {v1.Pod{
			ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now},
			Status:     v1.PodStatus{Phase: v1.PodRunning, StartTime: &now},
		}, false, true},
	} {
		if Terminal(&tc.pod) != tc.terminal || Admitted(&tc.pod) != tc.settled {
			t.Errorf("%s: Terminal = %t, Admitted = %t", name, Terminal(&tc.pod), Admitted(&tc.pod))
		}
	}
}

func TestCoresOverSeveralGPUs(t *testing.T) {
	two := func(p *v1.Pod) *v1.Pod { return annotated(p, "gpu-count", "2") }
	tests := map[string]struct {
		pod     *v1.Pod
		wantErr string
	}{
		"they divide":      {pod: two(pod(container("c", "gpu-mem", "4", "gpu-core", "60")))},
		"they do not":      {pod: two(pod(container("c", "gpu-mem", "4", "gpu-core", "55"))), wantErr: `"2": container "c" asks for 55 per cent of cores, which do not divide evenly over 2 GPUs: ask for 54 or 56`},
		"an init has less": {pod: two(withInit(pod(container("c", "gpu-mem", "4", "gpu-core", "60")), container("i", "gpu-mem", "4", "gpu-core", "20")))},
		"an init has more": {pod: two(withInit(pod(container("c", "gpu-mem", "4", "gpu-core", "20")), container("i", "gpu-mem", "4", "gpu-core", "60"))), wantErr: `container "c" asks for 20 per cent of cores, less than the 60 per cent that its init containers leave`},
		"an init has more, a container in between has none": {
			pod: two(withInit(pod(container("b", "gpu-mem", "4"), container("c", "gpu-mem", "4", "gpu-core", "20")), container("i", "gpu-mem", "4", "gpu-core", "60"))), wantErr: `container "c" asks for 20 per cent of cores`,
		},
		"a sidecar keeps its own": {pod: two(withInit(pod(container("c", "gpu-mem", "4", "gpu-core", "20")), sidecar(container("s", "gpu-mem", "4", "gpu-core", "60"))))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := names(t).Request(tc.pod)
			checkError(t, err, tc.wantErr)
		})
	}
}

func TestNames(t *testing.T) {
	n, err := NewNames("aliyun.com")
	if err != nil {
		t.Fatal(err)
	}
	got := []string{
		n.Domain(), string(n.GPUMem()), string(n.GPUCore()), n.Count(), n.Policy(), n.Model(), n.UUID(), n.ModelPreference(), n.Group(),
		n.ExclusiveGroup(), n.EnforcementLevel(), n.Assignment(), n.Index(), n.Inventory(),
	}
	want := []string{
		"aliyun.com", "aliyun.com/gpu-mem", "aliyun.com/gpu-core", "aliyun.com/gpu-count", "aliyun.com/policy", "aliyun.com/gpu-model",
		"aliyun.com/gpu-uuid", "aliyun.com/gpu-model-preference", "aliyun.com/gpu-group", "aliyun.com/exclusive-group", "aliyun.com/enforcement", "aliyun.com/assignment",
		"aliyun.com/gpu-index", "aliyun.com/inventory",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "UPPER.com", "a/b", "under_score", strings.Repeat("a", 254)} {
		if _, err := NewNames(bad); err == nil {
			t.Errorf("NewNames(%q): no error", bad)
		}
	}
}

// FuzzRequest checks that no pod causes a panic, and that an accepted request has valid amounts, divides over its
// GPUs, and equals the request of the holding.
func FuzzRequest(f *testing.F) {
	f.Add("3", "30", "1", "gpu-count", "2", true)
	f.Add("-1", "", "1e300", "policy", "spread", false)
	f.Add("9223372036854775807", "9223372036854775807", "9223372036854775807", "gpu-model", "!A*,[", true)
	f.Add("0.5", "0", "3000m", "assignment", assignmentOf("GPU-1"), false)
	f.Add("6", "", "4", "gpu-count", "2", false)
	f.Add("1", "", "", "enforcement", "kernel", false)
	n := names(f)
	f.Fuzz(func(t *testing.T, mem, core, init, key, value string, restarts bool) {
		if len(mem)+len(core)+len(init) > 60 || strings.ContainsAny(mem+core+init, "eE") && len(mem+core+init) > 12 {
			return // the API server rejects quantities that take long to parse
		}
		c, i := v1.Container{Name: "c"}, v1.Container{Name: "i"}
		set := func(c *v1.Container, name v1.ResourceName, s string) {
			if q, err := resource.ParseQuantity(s); err == nil {
				if c.Resources.Limits == nil {
					c.Resources.Limits = v1.ResourceList{}
				}
				c.Resources.Limits[name] = q
			}
		}
		set(&c, n.GPUMem(), mem)
		set(&c, n.GPUCore(), core)
		set(&i, n.GPUMem(), init)
		if restarts {
			i = sidecar(i)
		}
		p := annotated(withInit(pod(c, c), i), key, value)
		r, err := n.Request(p)
		h, _ := n.Holding(p)
		if err == nil && h.Request.Units() != r.Units() {
			t.Fatalf("%d units are asked for, and %d are held", r.Units(), h.Request.Units())
		}
		for _, r := range []placement.Request{r, h.Request} {
			units, cores := r.Share()
			if units < 0 || cores < 0 || units > 3*maxAmount || int64(cores) > 3*maxAmount {
				t.Fatalf("a share of %d units and %d%%", units, cores)
			}
			if units*gpu.Units(r.GPUs()) != r.Units() || cores*r.GPUs() != r.Cores() {
				t.Fatalf("%d GPUs with %d units each are not %d", r.GPUs(), units, r.Units())
			}
			verdict := placement.Fit(r, placement.NewNode("n", gpu.Inventory{UnitMiB: math.MaxInt64, Devices: []gpu.Device{{UUID: "GPU-1"}}}, []placement.Holding{h}))
			_, _ = nearmiss.GapOf(verdict), reasons.Verdict(verdict)
		}
	})
}
