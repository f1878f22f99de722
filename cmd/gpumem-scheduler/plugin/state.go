package plugin

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// Self is the name of the program.
const Self = "gpumem-scheduler"

// State is shared by the plugins of all profiles, because two caches would allocate one GPU twice.
type State struct {
	*service.Service
	decider decider.Decider
	handle  fwk.Handle // of the first profile: all profiles share one queue
}

// NewState returns the state of a process.
func NewState(log *zap.Logger, version string, conf service.Config) *State {
	s := &State{Service: service.New(Self, version, log, conf)}
	s.decider.Binder = s.Binder
	return s
}

// New returns the plugin of one profile. The first call connects the cache to kube-scheduler's informers.
func (s *State) New(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if args != nil {
		return nil, fmt.Errorf("%s takes no arguments in the configuration: its settings are flags of %s", Name, Self)
	}
	if s.Watch == nil {
		factory := handle.SharedInformerFactory()
		if len(handle.Extenders()) == 0 { // an extender may read all fields of a node
			if err := factory.Core().V1().Nodes().Informer().SetTransform(controller.TrimNode); err != nil {
				return nil, fmt.Errorf("watch nodes: %w", err)
			}
		}
		watch, err := controller.Follow(s.Log.Named("controller"), handle.ClientSet(), factory, s.Names, s.Binder.Cache)
		if err != nil {
			return nil, err
		}
		s.Connect(watch)
		s.handle = handle
	}
	bounds := &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100} // kube-scheduler's defaults
	defaults, err := defaultpreemption.New(ctx, bounds, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	p := &Plugin{Interface: defaults, PreEnqueuePlugin: defaults, decider: &s.decider, handle: handle, defaults: defaults}
	defaults.Evaluator.PluginName, defaults.Evaluator.Interface = Name, p // so that it calls p's SelectVictimsOnNode
	return p, nil
}

// Run serves HTTP and runs the periodic tasks until the context is done. Call it after Check has accepted all
// profiles.
func (s *State) Run(ctx context.Context) error {
	return s.Service.Run(ctx, func(ctx context.Context) { s.decider.Wake(ctx, queue{s.Watch, s.handle}) }, nil)
}

// queue is kube-scheduler's queue. The controller lists the waiting pods.
type queue struct {
	*controller.Controller
	handle fwk.Handle
}

// Wake ignores nominate, because kube-scheduler asks this plugin about no samples (Cycle.Sampled).
func (q queue) Wake(ctx context.Context, ref placement.PodRef, _ *string) error {
	pod := q.Pod(ref.Namespace, ref.Name)
	if pod == nil || string(pod.UID) != ref.UID {
		return errors.New("it is gone")
	}
	q.handle.Activate(klog.FromContext(ctx), map[string]*v1.Pod{ref.String(): pod})
	return nil
}
