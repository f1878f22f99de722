package service

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
)

// The metrics and the page list nodes to which kube-scheduler sends no pods, but omit these nodes from the total of
// free memory.
func TestWhatIsFreeWhereNoPodsGo(t *testing.T) {
	names := kubetest.Names(t)
	node := func(name string, gib int, changes ...func(*v1.Node)) *v1.Node {
		n := kubetest.Node(t, name, kubetest.Inventory(name, gib))
		for _, change := range changes {
			change(n)
		}
		return n
	}
	taint := func(key string, effect v1.TaintEffect) func(*v1.Node) {
		return func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: effect}) }
	}
	down := func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown }
	cordon := func(n *v1.Node) { n.Spec.Unschedulable = true }
	stop := func(n *v1.Node) { n.Status.Allocatable[names.GPUMem()] = resource.MustParse("0") }
	client := fake.NewClientset(
		node("open", 3), node("gpus", 2, taint("nvidia.com/gpu", v1.TaintEffectNoSchedule)),
		node("down", 79, down, taint(v1.TaintNodeUnreachable, v1.TaintEffectNoExecute)),
		node("cordoned", 40, cordon, taint(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule)),
		node("stopped", 24, stop), node("team", 16, taint("team", v1.TaintEffectNoSchedule)),
	)

	got := make(map[string]float64) // GiB by node
	var fleet page.Fleet
	synctest.Test(t, func(t *testing.T) {
		var conf Config
		conf.AddFlags(new(pflag.FlagSet))
		conf.Page, conf.PodMetrics, conf.Policy = true, true, "spread"
		if err := conf.Complete(); err != nil {
			t.Fatal(err)
		}
		s := New("gpumem-extender", "test", zaptest.NewLogger(t), conf)
		watch, err := controller.New(zaptest.NewLogger(t), client, names, s.Binder.Cache)
		if err != nil {
			t.Fatal(err)
		}
		s.Connect(watch)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Watch.Run(ctx) }()
		synctest.Wait()
		if !s.fleet().Pods {
			t.Error("pods have no series, and --pod-metrics was given")
		}
		for family := range s.fleet().Series {
			name := strings.TrimPrefix(family.GetName(), "gpumem_extender_")
			for _, m := range family.Metric {
				switch name {
				case "node_schedulable":
					got[m.Label[0].GetValue()+" "+m.Label[1].GetValue()] = m.Gauge.GetValue()
				case "free_bytes", "largest_free_bytes", "stranded_bytes", "tainted_free_bytes":
					got[name] = m.Gauge.GetValue() / (1 << 30)
				}
			}
		}
		source := s.source()
		fleet = page.NewFleet(*source)
		if got := source.Facts(source.Nodes()).Policy; got != placement.Spread {
			t.Errorf("the page has policy %q, and the flags spread", got)
		}
		cancel()
		<-done
	})
	if diff := cmp.Diff(map[string]float64{
		"free_bytes": 3 + 2 + 16, "largest_free_bytes": 16, "stranded_bytes": 79 + 40 + 24, "tainted_free_bytes": 16,
		"open ": 1, "gpus ": 1, "down ": 0, "cordoned ": 0, "stopped ": 0, "team team": 1,
	}, got); diff != "" {
		t.Errorf("the metrics (-want +got):\n%s", diff)
	}
	said := make(map[string][2]string)
	for _, n := range fleet.Nodes {
		said[n.Name] = [2]string{n.Closed, n.Taint}
	}
	if diff := cmp.Diff(map[string][2]string{
		"open": {}, "gpus": {}, "down": {"the node is NotReady", ""}, "cordoned": {"the node is cordoned", ""},
		"stopped": {"its kubelet offers no gpumem.dev/gpu-mem: see kubectl inspect gpumem doctor", ""}, "team": {"", "team"},
	}, said); diff != "" {
		t.Errorf("the page (-want +got):\n%s", diff)
	}
}

// TestRunWakesPods verifies that a service checks at an interval which waiting pods fit now.
func TestRunWakesPods(t *testing.T) {
	var conf Config
	conf.AddFlags(new(pflag.FlagSet))
	conf.ProbeListen, conf.ReadListen = "127.0.0.1:0", "127.0.0.1:0"
	if err := conf.Complete(); err != nil {
		t.Fatal(err)
	}
	s := New("gpumem-extender", "test", zap.NewNop(), conf)
	watch, err := controller.New(zap.NewNop(), fake.NewClientset(), kubetest.Names(t), s.Binder.Cache)
	if err != nil {
		t.Fatal(err)
	}
	s.Connect(watch)
	ctx, cancel := context.WithCancel(t.Context())
	woken, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(ctx context.Context) {
			select {
			case woken <- struct{}{}:
			case <-ctx.Done():
			}
		}, nil)
	}()
	for i := range 2 {
		select {
		case <-woken:
		case err := <-done:
			t.Fatalf("it ends: %v", err)
		case <-time.After(10 * wakeInterval):
			t.Fatalf("woken %d times", i)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
