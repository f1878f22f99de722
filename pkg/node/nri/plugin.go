package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/containers"
)

const (
	pluginName = "gpumem"
	// index is where the plugin stands among others: late, so that it sees what they
	// made.
	index = "80"
	// answerTimeout is less than the runtime waits by default, which is 2 s.
	answerTimeout = 1500 * time.Millisecond

	minRetry = time.Second
	maxRetry = 30 * time.Second
	// holdRetry is the time until a container is tried again that could not be given its limit.
	holdRetry = 10 * time.Second
)

// given is in the environment of each container that gpumem's device plugin gave
// anything.
const given = "GPUMEM_GPU_UUID"

// visible is the variable by which NVIDIA's runtime shows a container its GPUs, and noGPU its
// value for a container that is to have none.
const (
	visible = "NVIDIA_VISIBLE_DEVICES"
	noGPU   = "void"
)

// Containers knows what containers were given. Given is their environment, with the first of
// several values of a variable: the kubelet's.
type Containers interface {
	// Environment returns the variables of a container: none of one that is known to have been
	// given nothing, in a pod that has GPU memory. It is not ok where it is not known.
	Environment(ctx context.Context, namespace, pod, container string, given map[string]string) (env map[string]string, ok bool, err error)
	// Holds reports whether any container of a pod was given GPU memory.
	Holds(ctx context.Context, namespace, pod string) bool
	// Hold makes sure of the limit of a container whose control group this is.
	Hold(ctx context.Context, namespace, pod, container, cgroupsPath string, given map[string]string) error
	// Release gives back what is reserved for a container that has ended.
	Release(ctx context.Context, cgroupsPath string, given map[string]string) error
}

// Plugin answers a container runtime.
type Plugin struct {
	socket     string
	containers Containers
	log        *zap.Logger

	behind chan struct{} // capacity 1: containers wait

	mu      sync.Mutex // guards the rest
	missing error      // why the runtime does not call the plugin
	waiting []waiting
}

// waiting is a container that was started while the runtime did not call the plugin: it may have no
// limit yet.
type waiting struct {
	pod       *api.PodSandbox
	container *api.Container
	err       error // of the last try
}

// New returns a plugin for the runtime that listens on a socket.
func New(socket string, containers Containers, log *zap.Logger) *Plugin {
	return &Plugin{socket: socket, containers: containers, log: log, behind: make(chan struct{}, 1), missing: errors.New("the plugin has not registered with the container runtime yet")}
}

// Connected says why the runtime does not call the plugin; nil when it does.
func (p *Plugin) Connected() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missing
}

// Late says which container runs that was started while the runtime did not call the plugin, and
// has not been given its limit since; nil where there is none.
func (p *Plugin) Late() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		return nil
	}
	w := p.waiting[0]
	if w.err != nil {
		return fmt.Errorf("container %s runs without its limit: %w", nameOf(w.pod, w.container), w.err)
	}
	return fmt.Errorf("container %s runs, and it is not known yet whether it has its limit", nameOf(w.pod, w.container))
}

// settle remembers why the runtime does not call the plugin, and logs it when that
// is news.
func (p *Plugin) settle(missing error) {
	p.mu.Lock()
	was := p.missing
	p.missing = missing
	p.mu.Unlock()
	switch {
	case missing == nil:
		p.log.Info("the container runtime calls the plugin", zap.String("socket", p.socket))
	case was == nil || was.Error() != missing.Error():
		p.log.Info("the container runtime does not call the plugin", zap.Error(missing))
	}
}

// Run is connected until the context is done.
func (p *Plugin) Run(ctx context.Context) error {
	retry := minRetry
	for ctx.Err() == nil {
		closed, stop, err := p.connect(ctx)
		if err == nil {
			retry = minRetry
			p.catchUp(ctx, closed)
			stop()
			err = errors.New("the connection was lost")
		}
		p.settle(fmt.Errorf("NRI at %s: %w", p.socket, err))
		select {
		case <-ctx.Done():
		case <-time.After(retry):
			retry = min(2*retry, maxRetry)
		}
	}
	return nil
}

// catchUp gives their limits to containers that wait, and again to those for which it fails, until
// the connection is closed or the context is done.
func (p *Plugin) catchUp(ctx context.Context, closed <-chan struct{}) {
	for {
		var again <-chan time.Time
		if p.hold(ctx, closed) {
			again = time.After(holdRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-closed:
			return
		case <-p.behind:
		case <-again:
		}
	}
}

// hold gives their limits to containers that wait, and reports whether some still do.
func (p *Plugin) hold(ctx context.Context, closed <-chan struct{}) bool {
	p.mu.Lock()
	now := slices.Clone(p.waiting)
	p.mu.Unlock()
	for _, w := range now {
		select {
		case <-closed: // to connect again is more urgent
			return true
		default:
		}
		p.answered(w, p.limit(ctx, w.pod, w.container))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0
}

// answered notes what came of a container that waits, unless it has ended meanwhile.
func (p *Plugin) answered(w waiting, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.waiting, func(one waiting) bool { return one.container == w.container })
	switch {
	case i < 0:
	case err == nil:
		p.waiting = slices.Delete(p.waiting, i, i+1)
	default:
		if w.err == nil || w.err.Error() != err.Error() {
			p.log.Warn("container runs without its limit", zap.String("container", nameOf(w.pod, w.container)), zap.Error(err))
		}
		p.waiting[i].err = err
	}
}

// connect registers the plugin with the runtime. The channel is closed when the
// connection is.
func (p *Plugin) connect(ctx context.Context) (closed <-chan struct{}, stop func(), err error) {
	gone := make(chan struct{})
	var once sync.Once
	s, err := stub.New(p,
		stub.WithPluginName(pluginName), stub.WithPluginIdx(index), stub.WithSocketPath(p.socket),
		stub.WithOnClose(func() { once.Do(func() { close(gone) }) }),
		stub.WithLogger(logger{p.log.Sugar()}),
	)
	if err != nil {
		return nil, nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, nil, err
	}
	return gone, s.Stop, nil
}

// CreateContainer implements stub.CreateContainerInterface.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	name := nameOf(pod, container)
	if !ours(container) {
		if !seesGPUs(container.GetEnv()) || !p.containers.Holds(ctx, pod.GetNamespace(), pod.GetName()) {
			return nil, nil, nil
		}
		return p.adjusted(name, only(container.GetEnv(), visible), map[string]string{visible: noGPU})
	}
	env, ok, err := p.containers.Environment(ctx, pod.GetNamespace(), pod.GetName(), container.GetName(), givenTo(container))
	if err != nil {
		p.log.Warn("container is not created", zap.String("container", name), zap.Error(err))
		return nil, nil, fmt.Errorf("gpumem: container %s: %w", name, err)
	}
	if !ok { // the environment stays; a CDI device of a claim set it
		adjustment := &api.ContainerAdjustment{}
		if resolveNames(adjustment, valuesOf(container.GetEnv()), nil); len(adjustment.GetEnv()) == 0 {
			adjustment = nil
		}
		return adjustment, nil, nil
	}
	return p.adjusted(name, container.GetEnv(), env)
}

// adjusted answers with what adjust makes of a container.
func (p *Plugin) adjusted(name string, has []string, env map[string]string) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment, err := adjust(has, env)
	if err != nil {
		p.log.Warn("container is not created", zap.String("container", name), zap.Error(err))
		return nil, nil, fmt.Errorf("gpumem: container %s: %w", name, err)
	}
	return adjustment, nil, nil
}

// adjust makes the reserved variables of a container what they are to be, or says
// which of them the runtime could not be made to change.
func adjust(has []string, env map[string]string) (*api.ContainerAdjustment, error) {
	is := valuesOf(has)
	var own []string
	adjustment := &api.ContainerAdjustment{}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		want, wanted := env[name]
		differs := slices.ContainsFunc(is[name], func(value string) bool { return value != want })
		if Reserved(name) && (!wanted || differs && len(is[name]) > 1) {
			own = append(own, name)
		}
	}
	if len(own) > 0 {
		return nil, fmt.Errorf("sets %s, which gpumem sets: remove it from the pod, and from the ConfigMaps and Secrets in its envFrom", strings.Join(own, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if values := is[name]; Reserved(name) && (len(values) == 0 || values[0] != env[name]) {
			adjustment.AddEnv(name, env[name])
		}
	}
	resolveNames(adjustment, is, env)
	return adjustment, nil
}

// valuesOf returns the values of each variable.
func valuesOf(env []string) map[string][]string {
	is := make(map[string][]string)
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		is[name] = append(is[name], value)
	}
	return is
}

// resolveNames handles settings that pod or image set by their second name. Env has gpumem's values; nil means that they are unknown.
func resolveNames(adjustment *api.ContainerAdjustment, is map[string][]string, env map[string]string) {
	ours, first := make(map[string]string), make(map[string]string)
	for name, values := range is {
		first[name] = values[0]
		if len(values) == 1 && (env == nil || values[0] == env[name]) { // else the container sets it, too
			ours[name] = values[0]
		}
	}
	for name, value := range containers.ResolveNames(ours, first) {
		if value == "" {
			adjustment.RemoveEnv(name)
		} else {
			adjustment.AddEnv(name, value)
		}
	}
}

// StartContainer implements stub.StartContainerInterface.
func (p *Plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	if !ours(container) {
		return nil
	}
	if err := p.limit(ctx, pod, container); err != nil {
		name := nameOf(pod, container)
		p.log.Warn("container is not started", zap.String("container", name), zap.Error(err))
		return fmt.Errorf("gpumem: container %s: %w", name, err)
	}
	return nil
}

// limit gives a container its limit.
func (p *Plugin) limit(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return p.containers.Hold(ctx, pod.GetNamespace(), pod.GetName(), container.GetName(), container.GetLinux().GetCgroupsPath(), givenTo(container))
}

// StopContainer implements stub.StopContainerInterface: the program has ended, and the control
// group is about to go.
func (p *Plugin) StopContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	if !ours(container) {
		return nil, nil
	}
	p.mu.Lock()
	p.waiting = slices.DeleteFunc(p.waiting, func(w waiting) bool { return w.container.GetId() == container.GetId() })
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := p.containers.Release(ctx, container.GetLinux().GetCgroupsPath(), givenTo(container)); err != nil {
		p.log.Warn("memory reserved for a container was not released", zap.String("container", nameOf(pod, container)), zap.Error(err))
	}
	return nil, nil
}

// Synchronize implements stub.SynchronizeInterface. Containers that were started while the runtime
// did not call the plugin get their limits late, rather than never. The runtime does not wait long:
// Run does that.
func (p *Plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	var found []waiting
	for _, container := range containers {
		i := slices.IndexFunc(pods, func(pod *api.PodSandbox) bool { return pod.GetId() == container.GetPodSandboxId() })
		if i >= 0 && container.GetState() == api.ContainerState_CONTAINER_RUNNING && ours(container) {
			found = append(found, waiting{pod: pods[i], container: container})
		}
	}
	p.mu.Lock()
	p.waiting = found
	p.mu.Unlock()
	p.settle(nil) // and not before: only now is known which containers wait
	select {
	case p.behind <- struct{}{}:
	default:
	}
	return nil, nil
}

// Reserved reports whether a variable is gpumem's to set in containers that hold GPU
// memory.
func Reserved(name string) bool {
	return name == visible || !serviceLink(name) && (strings.HasPrefix(name, "GPUMEM_") ||
		strings.HasPrefix(name, "NVIDIA_GPU_MEMORY_") || strings.HasPrefix(name, "CUDA_MPS_"))
}

// serviceLink reports whether a variable has a name as the kubelet makes for the
// Services of a pod's namespace, which may be called gpumem-web.
// (k8s.io/kubernetes/pkg/kubelet/envvars, FromServices)
func serviceLink(name string) bool {
	return strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name+"_", "_PORT_")
}

func ours(container *api.Container) bool {
	return slices.ContainsFunc(container.GetEnv(), func(s string) bool { return strings.HasPrefix(s, given+"=") })
}

// seesGPUs reports whether NVIDIA's runtime would show a container any GPU.
func seesGPUs(env []string) bool {
	return slices.ContainsFunc(only(env, visible), func(s string) bool {
		return !slices.Contains([]string{visible + "=", visible + "=" + noGPU, visible + "=none"}, s)
	})
}

// only returns the values of one variable, as NAME=VALUE.
func only(env []string, name string) (values []string) {
	for _, s := range env {
		if strings.HasPrefix(s, name+"=") {
			values = append(values, s)
		}
	}
	return values
}

// givenTo returns the environment of a container: of several values of a variable the first,
// which is the kubelet's.
func givenTo(container *api.Container) map[string]string {
	env := container.GetEnv()
	given := make(map[string]string, len(env))
	for _, variable := range slices.Backward(env) {
		name, value, _ := strings.Cut(variable, "=")
		given[name] = value
	}
	return given
}

// nameOf names a container for people.
func nameOf(pod *api.PodSandbox, container *api.Container) string {
	return pod.GetNamespace() + "/" + pod.GetName() + "/" + container.GetName()
}

// logger gives what the library says to the log: nothing of it is for people who
// do not look for a fault.
type logger struct{ log *zap.SugaredLogger }

func (l logger) Debugf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
func (l logger) Infof(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l logger) Warnf(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l logger) Errorf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
