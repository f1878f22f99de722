package cli_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestLists(t *testing.T) {
	for name, args := range map[string][]string{
		"gpus":           {"gpus"},
		"gpus-wide":      {"gpus", "-o", "wide", "gpu-a"},
		"gpus-sorted":    {"gpus", "--sort-by", ".requested.units", "--no-headers"},
		"gpus-name":      {"gpus", "-o", "name", "-l", "name=gpu-a"},
		"pods":           {"pods"},
		"pods-selector":  {"pods", "-l", "team=vision", "-o", "wide"},
		"pods-waiting":   {"pods", "--waiting", "-o", "wide"},
		"pods-name":      {"pods", "-n", "ml", "-o", "name"},
		"pods-named":     {"pods", "ml/train", "pod/new", "nobody"},
		"pods-yaml":      {"pods", "train", "-o", "yaml"},
		"top":            {"top", "-n", "ml"},
		"top-wide":       {"top", "-n", "ml", "-o", "wide"},
		"fit":            {"fit", "--mem", "10"},
		"fit-two":        {"fit", "--mem", "20Gi", "--count", "2", "-o", "json"},
		"fit-nowhere":    {"fit", "--mem", "1000"},
		"explain-waits":  {"explain", "-n", "ml", "huge"},
		"explain-bound":  {"explain", "ml/train"},
		"explain-odd":    {"explain", "web/odd"},
		"explain-nobody": {"explain", "web/plain"},
		"nodes":          {"nodes", "gpu-a"},
	} {
		t.Run(name, func(t *testing.T) { clirun.Golden(t, clitest.Measured(t), "lists/"+name, args) })
	}
}

// Every view shows the memory that is reserved for a nominated pod.
func TestRoomThatIsKeptForANominatedPod(t *testing.T) {
	a := kubetest.Inventory("gpu-a", 14, 14)
	now := metav1.NewTime(time.Unix(1700000000, 0))
	low := kubetest.With(kubetest.Pod(t, "web/low", "gpu-a", 10, a.Devices[0].UUID), func(p *v1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} })
	vip := kubetest.With(kubetest.Pod(t, "ml/vip", "", 12), func(p *v1.Pod) {
		p.Spec.Priority, p.Status.NominatedNodeName = new(int32(100)), "gpu-a"
	})
	beside := kubetest.Pod(t, "web/beside", "gpu-a", 5, a.Devices[1].UUID)
	late := kubetest.Pod(t, "ml/late", "", 12)
	objects := []runtime.Object{clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", a), low, vip, beside, late}
	for name, args := range map[string][]string{
		"nominated-nodes":   {"nodes"},
		"nominated-details": {"--details"},
		"nominated-gpus":    {"gpus"},
		"nominated-pods":    {"pods", "--waiting"},
		"nominated-top":     {"top"},
		"nominated-vip":     {"explain", "ml/vip"},
		"nominated-late":    {"explain", "ml/late"},
		"nominated-fit":     {"fit", "--mem", "4"},
	} {
		t.Run(name, func(t *testing.T) { clirun.Golden(t, fake.NewClientset(objects...), "lists/"+name, args) })
	}
}

// Every view shows that a GPU with an exclusive pod has no free memory.
func TestAGPUThatIsHeldAlone(t *testing.T) {
	a := kubetest.Inventory("gpu-a", 14, 14)
	alone := kubetest.With(kubetest.Pod(t, "ml/alone", "gpu-a", 4, a.Devices[0].UUID), func(p *v1.Pod) { p.Annotations[kubetest.Names(t).Policy()] = "exclusive" })
	client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", a), alone, kubetest.Pod(t, "ml/beside", "gpu-a", 9, a.Devices[1].UUID))
	for name, args := range map[string][]string{
		"alone-nodes":   {"nodes", "-o", "wide"},
		"alone-details": {"--details"},
		"alone-gpus":    {"gpus"},
		"alone-fit":     {"fit", "--mem", "6"},
	} {
		t.Run(name, func(t *testing.T) { clirun.Golden(t, client, "lists/"+name, args) })
	}
}

// --sort-by accepts every field that the help names.
func TestHelpNamesFieldsThatThereAre(t *testing.T) {
	for _, list := range [][]string{{"gpus"}, {"pods"}, {"top"}, {"fit", "--mem", "1"}} {
		help, _, err := clirun.Inspect(clitest.Measured(t), list[0], "--help")
		_, fields, found := strings.Cut(strings.Join(strings.Fields(help), " "), "as a JSONPath: ") // the help is wrapped
		if err != nil || !found {
			t.Fatalf("%s: error %v, help:\n%s", list, err, help)
		}
		fields, _, _ = strings.Cut(fields, " -")
		fields, _, _ = strings.Cut(fields, " Use ")
		for field := range strings.SplitSeq(strings.ReplaceAll(fields, " or ", ", "), ", ") {
			if _, _, err := clirun.Inspect(clitest.Measured(t), append(list, "--sort-by", field)...); err != nil && strings.Contains(err.Error(), "--sort-by") {
				t.Errorf("%s: %v", list, err)
			}
		}
	}
}

func TestListsSayWhatIsWrongWithFlags(t *testing.T) {
	for want, args := range map[string][]string{
		`--output is "csv"`:             {"gpus", "-o", "csv"},
		"--selector":                    {"pods", "-l", "a=b=c"},
		"--sort-by":                     {"pods", "--sort-by", "{.a"},
		"no row has the field .nothing": {"gpus", "--sort-by", ".nothing"},
		"no row has the field .no":      {"gpus", "--sort-by", ".no"},
		"--watch prints rows":           {"gpus", "-w", "-o", "json"},
		"--sort-by: .granted has no order: name one of its fields, .granted.MiB or .granted.units": {"pods", "--sort-by", ".granted"},
		"--sort-by: {$.granted} has no order: name one of its fields, MiB or units":                {"pods", "--sort-by", "{$.granted}"},
		"--sort-by: .pods is a list, which has no order":                                           {"gpus", "--sort-by", ".pods"},
		`--mem is "much"`:              {"fit", "--mem", "much"},
		"want a number of GPUs from 1": {"fit", "--mem", "1", "--count", "0"},
		`policy "best"`:                {"fit", "--mem", "1", "--policy", "best"},
		"has no GPU \"7\": want an":    {"cordon", "gpu-a", "7"},
		"offers no GPU memory":         {"cordon", "cpu-1", "0"},
		"not found":                    {"cordon", "nobody", "0"},
	} {
		if _, _, err := clirun.Inspect(clitest.Measured(t), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// A pod that no scheduler of gpumem considers has no Event with a reason, so every view shows the reason.
func TestSchedulerThatNobodyAsks(t *testing.T) {
	for name, tc := range map[string]struct {
		scheduler string
		seen      bool
		units     int64
		gated     bool
		unread    bool // the user may not read the schedulers' configuration
		want      string
	}{
		"seen":                      {scheduler: "gpumem-scheduler", seen: true, units: 3, want: "its events show why it waits"},
		"scheduler does not run":    {scheduler: "gpumem-scheduler", units: 3, want: `no scheduler has considered it yet: does its scheduler, "gpumem-scheduler", run?`},
		"gated":                     {scheduler: "gpumem-scheduler", gated: true, seen: true, units: 3, want: "it has scheduling gates: no scheduler considers it before they are removed"},
		"misspelt":                  {scheduler: "gpumem-schedular", units: 3, want: `its schedulerName is "gpumem-schedular", and no scheduler has considered it: did you mean gpumem-scheduler?`},
		"misspelt, and no room":     {scheduler: "gpumem-schedular", units: 300, want: `; its schedulerName is "gpumem-schedular", and no scheduler has considered it: did you mean gpumem-scheduler?`},
		"misspelt, not to be known": {scheduler: "gpumem-schedular", units: 3, unread: true, want: `its schedulerName is "gpumem-schedular", and no scheduler has considered it: did you mean gpumem-scheduler?`},
		"none of that name":         {scheduler: "volcano", units: 3, want: `its schedulerName is "volcano", and no scheduler has considered it: does a scheduler of this name run? gpumem's scheduler is gpumem-scheduler`},
		"another":                   {seen: true, units: 3, want: `its schedulerName is "default-scheduler", a scheduler that does not ask gpumem; gpumem's scheduler is gpumem-scheduler`},
		"another, not to be known":  {seen: true, units: 3, unread: true, want: "its events show why it waits"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := kubetest.With(kubetest.Pod(t, "ml/waits", "", tc.units), func(p *v1.Pod) {
				p.Spec.SchedulerName = tc.scheduler
				if tc.gated {
					p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/quota"}}
				}
				if !tc.seen {
					p.Status.Conditions = nil
				}
			})
			client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod, clitest.SchedulerConfig())
			if tc.unread {
				if err := client.CoreV1().ConfigMaps("gpumem-system").Delete(context.Background(), "gpumem-scheduler", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			for _, args := range [][]string{{"explain", "ml/waits"}, {"-d"}, {"pods", "-o", "wide"}} {
				stdout, _, err := clirun.Inspect(client, args...)
				if err != nil || !strings.Contains(stdout, tc.want+"\n") {
					t.Errorf("%q: error %v, want %q, got:\n%s", args, err, tc.want, stdout)
				}
			}
		})
	}
}

// A pod that requests only cores, or a resource that no node offers, is listed as waiting, and every
// view shows the reason.
func TestPodsThatAskForNoMemoryAndWait(t *testing.T) {
	for resourceName, why := range map[v1.ResourceName]string{
		"gpumem.dev/gpu-core":   `container "main": gpumem.dev/gpu-core needs gpumem.dev/gpu-mem too`,
		"gpumem.dev/gpu-memory": "asks for gpumem.dev/gpu-memory, which no node offers: gpumem does not know it (did you mean gpumem.dev/gpu-mem?)",
	} {
		pod := kubetest.With(kubetest.Pod(t, "ml/odd", "", 0), func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{resourceName: resource.MustParse("30")}
		})
		client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod)
		for _, args := range [][]string{{"explain", "ml/odd"}, {"pods", "--waiting"}, {"pods", "odd", "-o", "wide"}, {"-d"}} {
			if stdout, _, err := clirun.Inspect(client, args...); err != nil || !strings.Contains(stdout, why+"\n") {
				t.Errorf("%q: error %v, want %q in:\n%s", args, err, why, stdout)
			}
		}
	}
}

// Other requests of a pod do not hide its request of GPU memory.
func TestAPodThatWaitsInVainAsksForItsMemory(t *testing.T) {
	pod := kubetest.With(kubetest.Pod(t, "ml/odd", "", 5), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits["gpumem.dev/gpu-cores"] = resource.MustParse("30")
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/quota"}}
	})
	others := kubetest.Node(t, "cpu-1", gpu.Inventory{})
	others.Status.Allocatable = v1.ResourceList{"gpumem.dev/gpu-cores": resource.MustParse("0")}
	offers := kubetest.Node(t, "cpu-0", gpu.Inventory{})
	offers.Status.Allocatable = v1.ResourceList{"gpumem.dev/gpu-cores": resource.MustParse("3")}
	const vain = "asks for gpumem.dev/gpu-cores, which no node offers: gpumem does not know it (did you mean gpumem.dev/gpu-core?); it has scheduling gates: no scheduler considers it before they are removed"
	for name, tc := range map[string]struct {
		client *fake.Clientset
		args   []string
		want   string
	}{
		"pods":                     {fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), others, pod), []string{"pods", "--waiting"}, "Waiting  <unknown>  5               " + vain},
		"explain":                  {fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod), []string{"explain", "ml/odd"}, "waits: it " + vain + "\nAsks for:  5 GiB on one GPU\n"},
		"another offers it":        {fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), offers, others, pod), []string{"pods", "--waiting"}, "Waiting  <unknown>  5               its GPU memory fits on gpu-a; "},
		"nodes that are not known": {fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod), []string{"gpu-a", "-d"}, "its GPU memory fits on gpu-a; "},
	} {
		if stdout, _, err := clirun.Inspect(tc.client, tc.args...); err != nil || !strings.Contains(stdout, tc.want) {
			t.Errorf("%s: error %v, want %q in:\n%s", name, err, tc.want, stdout)
		}
	}
}

// If the kubelet could confuse two pods, the second pod fits no node until the kubelet has admitted the
// first, and every command shows this reason.
func TestCommandsSayForWhichPodOneWaits(t *testing.T) {
	a := kubetest.Inventory("gpu-a", 14, 14)
	first := kubetest.Pod(t, "ml/first", "gpu-a", 4, a.Devices[1].UUID)
	asks := func(p *v1.Pod) {
		p.Annotations[kubetest.Names(t).UUID()] = string(a.Devices[0].UUID)
		p.Annotations[kubetest.Names(t).Policy()] = "binpack"
	}
	second := kubetest.With(kubetest.Pod(t, "ml/second", "", 4), asks)
	const waits = "waits until the kubelet has admitted pod ml/first, because the kubelet could confuse the two"
	for _, tc := range []struct{ args, waits, admitted string }{
		{"fit --mem 4 --policy spread", waits, "Fits 5 times in all."},
		{"explain ml/second", "it does not fit on the only node; gpu-a comes closest: " + waits, "its GPU memory fits on 1 of 1 node"},
		{"pods --waiting ml/second", "gpu-a: " + waits, "its GPU memory fits on gpu-a"},
		{"defrag ml/second", "No pod has to be evicted as it is.\nFor now the pod " + waits + ".\n", "No pod has to be evicted as it is"},
	} {
		for want, started := range map[string]*metav1.Time{tc.waits: nil, tc.admitted: {Time: time.Unix(1700000000, 0)}} {
			first := first.DeepCopy()
			first.Status.StartTime = started
			client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", a), first, second)
			stdout, stderr, err := clirun.Inspect(client, strings.Fields(tc.args)...)
			if said := stdout + fmt.Sprint(err); !strings.Contains(said, want) || stderr != "" || strings.Contains(said, waits) != (started == nil) {
				t.Errorf("%s: want %q in:\n%s%s", tc.args, want, said, stderr)
			}
		}
	}
}
