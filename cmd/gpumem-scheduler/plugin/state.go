package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// Self is the name of the program.
const Self = "gpumem-scheduler"

// State is shared by the plugins of all profiles, because two caches would allocate one GPU twice.
type State struct {
	conf    service.Config
	version string
	log     *zap.Logger

	Cache *cache.Cache           // GPU memory by pod
	Watch *controller.Controller // feeds Cache; New sets it

	handle  fwk.Handle // of the first profile: all profiles share one queue
	decider *decider.Decider
	service *service.Service
}

// NewState returns the state of a process.
func NewState(log *zap.Logger, version string, conf service.Config) *State {
	return &State{conf: conf, version: version, log: log, Cache: cache.New(), decider: new(decider.Decider)}
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
		watch, err := controller.Follow(s.log.Named("controller"), handle.ClientSet(), factory, s.conf.Names, s.Cache)
		if err != nil {
			return nil, err
		}
		s.Watch, s.handle = watch, handle
	}
	bounds := &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100} // kube-scheduler's defaults
	defaults, err := defaultpreemption.New(ctx, bounds, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	p := &Plugin{Interface: defaults, PreEnqueuePlugin: defaults, decider: s.decider, handle: handle, defaults: defaults}
	defaults.Evaluator.PluginName, defaults.Evaluator.Interface = Name, p // so that it calls p's SelectVictimsOnNode
	return p, nil
}

// Start sets up the binder and the service. Call it after Check has accepted all profiles and before
// kube-scheduler runs. Parameter leads becomes binder.Binder.Leads.
func (s *State) Start(leads func() (since time.Time, alone bool)) {
	s.service = service.New(Self, s.version, s.log, s.conf, s.Cache, s.Watch)
	s.decider.Binder = s.service.Binder
	s.decider.Leads = leads
}

// Run serves HTTP and runs the periodic tasks until the context is done. Call Start before.
func (s *State) Run(ctx context.Context) error {
	return s.service.Run(ctx, func(ctx context.Context) { s.decider.Wake(ctx, queue{s.Watch, s.handle}) }, nil)
}

// Drain rejects new Binds. It returns when all sent bindings have been answered or cannot land any more. Then
// another process may decide.
func (s *State) Drain() { s.decider.Drain() }

// queue is kube-scheduler's queue. The controller lists the waiting pods.
type queue struct {
	*controller.Controller
	handle fwk.Handle
}

func (q queue) Wake(ctx context.Context, ref placement.PodRef, _ *string) error {
	pod := q.Pod(ref.Namespace, ref.Name)
	if pod == nil || string(pod.UID) != ref.UID {
		return errors.New("it is gone")
	}
	q.handle.Activate(klog.FromContext(ctx), map[string]*v1.Pod{ref.String(): pod})
	return nil
}
