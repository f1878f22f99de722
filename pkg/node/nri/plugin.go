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

	"github.com/gpumem/gpumem/pkg/node/render"
)

const (
	pluginName = "gpumem"
	// index places the plugin late among the runtime's plugins, so that it sees the changes of earlier plugins.
	index = "80"
	// answerTimeout is shorter than the runtime's default timeout of 2 s.
	answerTimeout = 1500 * time.Millisecond

	minRetry = time.Second
	maxRetry = 30 * time.Second
	// limitRetryInterval is the pause before another attempt to set a running container's limit.
	limitRetryInterval = 10 * time.Second
)

// uuidVariable is a variable in the environment of each container with a grant.
const uuidVariable = "GPUMEM_GPU_UUID"

// visible is the variable that selects a container's GPUs in NVIDIA's runtime. The value noGPUValue hides all of
// them.
const (
	visible    = "NVIDIA_VISIBLE_DEVICES"
	noGPUValue = "void"
)

// Containers provides the grants of containers. The argument `given` of its methods is a container's
// environment, with the first value of each variable, which is the kubelet's value.
type Containers interface {
	// Environment returns gpumem's variables for a container. For a container that has no grant, in a pod with GPU
	// memory, they are empty and ok is true. ok is false if the plugin must not change the variables: gpumem does not
	// know the container, or a claim's CDI device has set them.
	Environment(ctx context.Context, namespace, pod, container string, given map[string]string) (env map[string]string, ok bool, err error)
	// HoldsMemory reports whether any container of a pod has a grant of GPU memory.
	HoldsMemory(ctx context.Context, namespace, pod string) bool
	// SetLimit ensures the limit of a container, which runs in the given control group.
	SetLimit(ctx context.Context, namespace, pod, container, cgroupsPath string, given map[string]string) error
	// Release releases the reservations of a container that has ended.
	Release(ctx context.Context, cgroupsPath string, given map[string]string) error
}

// Plugin handles the calls of a container runtime.
type Plugin struct {
	socket     string
	containers Containers
	log        *zap.Logger

	behind chan struct{} // capacity 1: tells method Run that containers wait

	mu      sync.Mutex // guards the rest
	missing error      // reason why the runtime does not call the plugin
	waiting []waiting
}

// waiting is a container that the runtime started while the plugin was disconnected. It may have no limit yet.
type waiting struct {
	pod       *api.PodSandbox
	container *api.Container
	err       error // from the last attempt
}

// New returns a plugin for the runtime that listens on the socket.
func New(socket string, containers Containers, log *zap.Logger) *Plugin {
	return &Plugin{socket: socket, containers: containers, log: log, behind: make(chan struct{}, 1), missing: errors.New("the plugin has not registered with the container runtime yet")}
}

// Connected returns the reason why the runtime does not call the plugin, or nil.
func (p *Plugin) Connected() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missing
}

// UnlimitedContainer returns an error with the name of a running container without a confirmed limit, which
// started while the plugin was disconnected. It returns nil if there is no such container.
func (p *Plugin) UnlimitedContainer() error {
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

// recordOutcome stores the reason why the runtime does not call the plugin, and logs a change.
func (p *Plugin) recordOutcome(missing error) {
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

// Run keeps the plugin connected to the runtime until the context is done.
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
		p.recordOutcome(fmt.Errorf("NRI at %s: %w", p.socket, err))
		select {
		case <-ctx.Done():
		case <-time.After(retry):
			retry = min(2*retry, maxRetry)
		}
	}
	return nil
}

// catchUp sets the limits of waiting containers, and retries failures, until the connection is closed or the
// context is done.
func (p *Plugin) catchUp(ctx context.Context, closed <-chan struct{}) {
	for {
		var retry <-chan time.Time
		if p.setWaitingLimits(ctx, closed) {
			retry = time.After(limitRetryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-closed:
			return
		case <-p.behind:
		case <-retry:
		}
	}
}

// setWaitingLimits sets the limits of waiting containers, and reports whether some still wait.
func (p *Plugin) setWaitingLimits(ctx context.Context, closed <-chan struct{}) bool {
	p.mu.Lock()
	now := slices.Clone(p.waiting)
	p.mu.Unlock()
	for _, w := range now {
		select {
		case <-closed: // the reconnect is more urgent
			return true
		default:
		}
		p.recordLimit(w, p.limit(ctx, w.pod, w.container))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0
}

// recordLimit records the outcome of an attempt for a waiting container, unless the container has ended
// meanwhile.
func (p *Plugin) recordLimit(w waiting, err error) {
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

// connect registers the plugin with the runtime. The channel is closed when the connection ends.
func (p *Plugin) connect(ctx context.Context) (closed <-chan struct{}, stop func(), err error) {
	disconnected := make(chan struct{})
	var once sync.Once
	s, err := stub.New(p,
		stub.WithPluginName(pluginName), stub.WithPluginIdx(index), stub.WithSocketPath(p.socket),
		stub.WithOnClose(func() { once.Do(func() { close(disconnected) }) }),
		stub.WithLogger(logger{p.log.Sugar()}),
	)
	if err != nil {
		return nil, nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, nil, err
	}
	return disconnected, s.Stop, nil
}

// CreateContainer implements stub.CreateContainerInterface.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	name := nameOf(pod, container)
	if !ours(container) {
		if !seesGPUs(container.GetEnv()) || !p.containers.HoldsMemory(ctx, pod.GetNamespace(), pod.GetName()) {
			return nil, nil, nil
		}
		return p.adjusted(name, settingsOf(container.GetEnv(), visible), map[string]string{visible: noGPUValue})
	}
	env, ok, err := p.containers.Environment(ctx, pod.GetNamespace(), pod.GetName(), container.GetName(), environmentOf(container))
	if err != nil {
		p.log.Warn("container is not created", zap.String("container", name), zap.Error(err))
		return nil, nil, fmt.Errorf("gpumem: container %s: %w", name, err)
	}
	if !ok { // gpumem does not change its own variables: for example, a claim's CDI device has set them
		adjustment := &api.ContainerAdjustment{}
		if resolveNames(adjustment, valuesOf(container.GetEnv()), nil); len(adjustment.GetEnv()) == 0 {
			adjustment = nil
		}
		return adjustment, nil, nil
	}
	return p.adjusted(name, container.GetEnv(), env)
}

// adjusted returns the answer to CreateContainer: the adjustment from adjust, or its error.
func (p *Plugin) adjusted(name string, current []string, env map[string]string) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment, err := adjust(current, env)
	if err != nil {
		p.log.Warn("container is not created", zap.String("container", name), zap.Error(err))
		return nil, nil, fmt.Errorf("gpumem: container %s: %w", name, err)
	}
	return adjustment, nil, nil
}

// adjust returns the changes to the reserved variables of a container, or an error that names the variables
// that the runtime cannot change.
func adjust(current []string, env map[string]string) (*api.ContainerAdjustment, error) {
	values := valuesOf(current)
	var own []string
	adjustment := &api.ContainerAdjustment{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		want, wanted := env[name]
		differs := slices.ContainsFunc(values[name], func(value string) bool { return value != want })
		if Reserved(name) && (!wanted || differs && len(values[name]) > 1) {
			own = append(own, name)
		}
	}
	if len(own) > 0 {
		return nil, fmt.Errorf("sets %s, which gpumem sets: remove it from the pod, and from the ConfigMaps and Secrets in its envFrom", strings.Join(own, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if values := values[name]; Reserved(name) && (len(values) == 0 || values[0] != env[name]) {
			adjustment.AddEnv(name, env[name])
		}
	}
	resolveNames(adjustment, values, env)
	return adjustment, nil
}

// valuesOf returns the values of each variable, in order.
func valuesOf(env []string) map[string][]string {
	values := make(map[string][]string)
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = append(values[name], value)
	}
	return values
}

// resolveNames corrects gpumem's variables for frameworks that read a setting under two names. If the pod or the image
// sets the second name, which takes precedence, resolveNames adds the value from render.ResolveNames. The map `env`
// contains gpumem's values, and is nil if they are unknown.
func resolveNames(adjustment *api.ContainerAdjustment, values map[string][]string, env map[string]string) {
	ours, first := make(map[string]string), make(map[string]string)
	for name, values := range values {
		first[name] = values[0]
		if len(values) == 1 && (env == nil || values[0] == env[name]) { // otherwise the value may be the pod's or the image's
			ours[name] = values[0]
		}
	}
	for name, value := range render.ResolveNames(ours, first) {
		adjustment.AddEnv(name, value) // "" is set, not removed: container runtimes ignore removals (NRI 0.12.5)
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

// limit sets a container's limit.
func (p *Plugin) limit(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return p.containers.SetLimit(ctx, pod.GetNamespace(), pod.GetName(), container.GetName(), container.GetLinux().GetCgroupsPath(), environmentOf(container))
}

// StopContainer implements stub.StopContainerInterface. The container's program has ended, and the runtime is
// about to remove the control group.
func (p *Plugin) StopContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	if !ours(container) {
		return nil, nil
	}
	p.mu.Lock()
	p.waiting = slices.DeleteFunc(p.waiting, func(w waiting) bool { return w.container.GetId() == container.GetId() })
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := p.containers.Release(ctx, container.GetLinux().GetCgroupsPath(), environmentOf(container)); err != nil {
		p.log.Warn("memory reserved for a container was not released", zap.String("container", nameOf(pod, container)), zap.Error(err))
	}
	return nil, nil
}

// Synchronize implements stub.SynchronizeInterface. It queues the containers that started while the plugin was
// disconnected. Run sets their limits later, because the runtime does not wait long enough for Synchronize.
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
	p.recordOutcome(nil) // only now are the waiting containers known
	select {
	case p.behind <- struct{}{}:
	default:
	}
	return nil, nil
}

// Reserved reports whether only gpumem may set a variable in containers with GPU memory.
func Reserved(name string) bool {
	return name == visible || !serviceLink(name) && (strings.HasPrefix(name, "GPUMEM_") ||
		strings.HasPrefix(name, "NVIDIA_GPU_MEMORY_") || strings.HasPrefix(name, "CUDA_MPS_"))
}

// serviceLink reports whether a variable has the form that the kubelet uses for Services of the pod's namespace. The
// variables of a Service named gpumem-web start with GPUMEM_ too. (k8s.io/kubernetes/pkg/kubelet/envvars,
// FromServices)
func serviceLink(name string) bool {
	return strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name+"_", "_PORT_")
}

func ours(container *api.Container) bool {
	return slices.ContainsFunc(container.GetEnv(), func(s string) bool { return strings.HasPrefix(s, uuidVariable+"=") })
}

// seesGPUs reports whether NVIDIA's runtime would show any GPU to a container.
func seesGPUs(env []string) bool {
	return slices.ContainsFunc(settingsOf(env, visible), func(s string) bool {
		return !slices.Contains([]string{visible + "=", visible + "=" + noGPUValue, visible + "=none"}, s)
	})
}

// settingsOf returns the settings of one variable, as NAME=VALUE.
func settingsOf(env []string, name string) (values []string) {
	for _, s := range env {
		if strings.HasPrefix(s, name+"=") {
			values = append(values, s)
		}
	}
	return values
}

// environmentOf returns the environment of a container, with the first value of each variable, which is the
// kubelet's.
func environmentOf(container *api.Container) map[string]string {
	env := container.GetEnv()
	given := make(map[string]string, len(env))
	for _, variable := range slices.Backward(env) {
		name, value, _ := strings.Cut(variable, "=")
		given[name] = value
	}
	return given
}

// nameOf returns a container's name for messages.
func nameOf(pod *api.PodSandbox, container *api.Container) string {
	return pod.GetNamespace() + "/" + pod.GetName() + "/" + container.GetName()
}

// logger passes the library's messages to the log at debug level, because they matter only for troubleshooting.
type logger struct{ log *zap.SugaredLogger }

func (l logger) Debugf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
func (l logger) Infof(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l logger) Warnf(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l logger) Errorf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
