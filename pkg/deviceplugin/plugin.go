package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inventory"
	"github.com/gpumem/gpumem/pkg/placement"
)

// Pods tells which pods are bound to the node, whether these are all, and when
// that changes; and it writes which GPUs a pod really has.
type Pods interface {
	Pods() (pods []allocation.Pod, complete bool, changed <-chan struct{})
	// Refresh asks the API server itself for them.
	Refresh(ctx context.Context) error
	Correct(ctx context.Context, pod placement.PodRef, a placement.Assignment, inv gpu.Inventory) error
}

// Kubelet tells what containers hold, and which pods it lists.
type Kubelet interface {
	List(ctx context.Context) (held []allocation.Held, known map[string]bool, err error)
}

// Events tells people what was done.
type Events interface {
	Pod(ref placement.PodRef, warning bool, reason, note string)
	Node(warning bool, reason, note string)
}

// Metrics is told how far apart the assignments are that are written and those
// that the kubelet has made.
type Metrics interface {
	// Drifted tells of how many pods something else is written than what they
	// have been given.
	Drifted(pods int)
	// Corrected tells that an assignment has been written, and why: one of the
	// Reasons.
	Corrected(reason string)
}

// Reasons to write an assignment.
const (
	ReasonPlaced  = "placed"  // there was none, or somebody has changed it
	ReasonHeld    = "held"    // the kubelet has given the pod other GPUs
	ReasonPlanned = "planned" // the kubelet has given the pod's GPUs to another, which leaves it that one's
)

// Config is what a Plugin is to do. All fields are to be set, but for those that
// say otherwise.
type Config struct {
	Node            string
	Policy          placement.Policy // for pods that name none
	PlaceUnassigned bool             // place pods that no scheduler placed; otherwise refuse them
	Strategy        Strategy
	Frameworks      []Framework
	GPUShare        bool // tell containers of their grant in gpushare's words too
	Coreless        bool // schedulers are to give no cores of this node to pods

	MPSDir string // where the MPS daemon keeps its pipes, on the host and in containers
	// Ready says why a container that was promised a level must not start now.
	Ready func(ctx context.Context, level gpu.Enforcement) error
	// Hold makes sure of the limit in a container's control group.
	Hold func(group string, devices []gpu.Device, limitMiB int64) error

	// Cordoned tells which GPUs get no pods that no scheduler placed; nil: none.
	// To the kubelet they stay healthy: it would not restart the containers on
	// them otherwise.
	Cordoned func() []gpu.UUID

	PodWait     time.Duration // for the news of a pod for which the kubelet asks
	KubeletWait time.Duration // for an answer of the kubelet
	WriteWait   time.Duration // for the correction of a pod whose container is to start
}

// DefaultConfig returns the waits that suit a real kubelet, and the defaults of
// the rest.
func DefaultConfig(node string) Config {
	return Config{
		Node: node, Policy: placement.Binpack, PlaceUnassigned: true, Strategy: Envvar, MPSDir: "/run/gpumem/mps",
		Ready:   func(context.Context, gpu.Enforcement) error { return nil },
		Hold:    func(string, []gpu.Device, int64) error { return errors.New("nobody can write it") },
		PodWait: 3 * time.Second, KubeletWait: time.Second, WriteWait: 2 * time.Second,
	}
}

// Plugin answers the kubelet about memory, and has a server of its own for
// cores (Cores). Runner brings each to the kubelet, and Reconcile runs beside
// them.
type Plugin struct {
	pluginapi.UnimplementedDevicePluginServer

	cfg     Config
	prober  inventory.Source
	offers  *offers
	pods    Pods
	kubelet Kubelet
	events  Events
	metrics Metrics
	log     *zap.Logger

	kick chan struct{} // capacity 1: the loop is to look

	mu       sync.Mutex // guards the rest
	held     []allocation.Held
	heard    bool                            // the kubelet has told what it has given
	given    []allocation.Given              // the kubelet may not have told of it yet
	writing  map[string]bool                 // UIDs of pods that are being corrected
	reported map[string]bool                 // UIDs of pods whose slots fit no assignment
	plans    map[string]placement.Assignment // by UID, what was written of pods when the kubelet admitted them, or here since
	levels   levels
	account  account
}

// New returns a plugin.
func New(cfg Config, prober inventory.Source, pods Pods, kubelet Kubelet, events Events, metrics Metrics, log *zap.Logger) *Plugin {
	return &Plugin{
		cfg: cfg, prober: prober, offers: &offers{source: prober}, pods: pods, kubelet: kubelet, events: events, metrics: metrics, log: log,
		kick: make(chan struct{}, 1), writing: make(map[string]bool), reported: make(map[string]bool), plans: make(map[string]placement.Assignment),
		levels: make(levels), account: account{changed: make(chan struct{})},
	}
}

// Alive returns unless nobody can have the lock of the plugin any more.
func (p *Plugin) Alive() {
	p.mu.Lock()
	defer p.mu.Unlock()
}

// GetDevicePluginOptions implements pluginapi.DevicePluginServer.
func (p *Plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends what is offered, and again whenever that is something else.
func (p *Plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	return p.listAndWatch(gpu.Memory, stream)
}

func (p *Plugin) listAndWatch(r gpu.Resource, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	p.forgetGiven() // a kubelet that has restarted may have lost them
	var last *pluginapi.ListAndWatchResponse
	for {
		o, changed := p.offer()
		if list := o.list(r); last == nil || !proto.Equal(list, last) {
			if err := stream.Send(list); err != nil {
				return fmt.Errorf("send the devices: %w", err)
			}
			p.log.Info("devices sent", zap.String("node", p.cfg.Node), zap.Int("devices", len(o.inventory.Devices)), zap.Stringer("resource", r), zap.Int("slots", len(list.GetDevices())))
			last = list
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation steers the kubelet to the GPUs of the pod that it is
// likely to be admitting.
func (p *Plugin) GetPreferredAllocation(ctx context.Context, req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	return p.preferredAllocation(ctx, gpu.Memory, req)
}

func (p *Plugin) preferredAllocation(ctx context.Context, r gpu.Resource, req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		ids, err := p.prefer(ctx, r, slotIDs(c.GetAvailableDeviceIDs()), slotIDs(c.GetMustIncludeDeviceIDs()), int(c.GetAllocationSize()))
		if err != nil {
			return nil, asStatus(err)
		}
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: plain(ids)})
	}
	return out, nil
}

// prefer waits for the pod to be known before it chooses without knowing it.
func (p *Plugin) prefer(ctx context.Context, r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	waiting, cancel := context.WithTimeout(ctx, p.cfg.PodWait)
	defer cancel()
	news := p.news()
	for {
		s, changed, _ := p.look(waiting)
		ids, err := preferListed(s, r, available, must, size)
		if errors.Is(err, allocation.ErrNoPod) {
			if news.wait(waiting, changed) {
				continue
			}
			if ctx.Err() != nil {
				return nil, fmt.Errorf("the kubelet did not wait: %w", ctx.Err())
			}
			ids, err = p.lastResort(s, r, available, must, size)
		}
		if err != nil {
			p.refuse(s, r, size, err)
			return nil, err
		}
		p.log.Debug("slots preferred", zap.String("node", p.cfg.Node), zap.Stringer("resource", r), zap.Int("slots", size), zap.Strings("devices", deviceNames(s, ids)))
		return ids, nil
	}
}

// news is what is waited for where a pod is not known.
type news struct {
	*Plugin
	asked bool
}

func (p *Plugin) news() *news { return &news{Plugin: p} }

// wait returns true once there may be some, and false when it is too late. The
// watch usually brings it; after a part of the time the API server is asked,
// once, for the watch may be broken.
func (n *news) wait(ctx context.Context, changed <-chan struct{}) bool {
	if !n.asked {
		patience, cancel := context.WithTimeout(ctx, n.cfg.PodWait/6)
		defer cancel()
		select {
		case <-changed:
			return true
		case <-patience.Done():
		}
		n.asked = true
		if err := n.pods.Refresh(ctx); err != nil {
			n.log.Warn("the API server does not tell of the pod that the kubelet asks for", zap.String("node", n.cfg.Node), zap.Error(err))
		}
	}
	select {
	case <-changed:
		return true
	case <-ctx.Done():
		return false
	}
}

// preferListed is allocation.Prefer, but says ErrNoPod when none of the pods
// that the kubelet lists is waiting: it lists the one that it asks for. One that it
// has admitted, and never tells anything about, seems to wait for as long as it runs.
func preferListed(s allocation.State, r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	if s.Known != nil {
		listed := s
		listed.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(pod allocation.Pod) bool {
			return !s.Known[pod.Pod.String()] || pod.Settled && pod.Unlisted()
		})
		ids, err := allocation.Prefer(listed, r, available, must, size)
		if errors.Is(err, allocation.ErrNoPod) || len(listed.Pods) == len(s.Pods) {
			return ids, err
		}
	}
	return allocation.Prefer(s, r, available, must, size)
}

// lastResort chooses for a pod that has not become known in time. It gets no
// cores: nobody knows which GPU they would have to be of.
func (p *Plugin) lastResort(s allocation.State, r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	ids, err := allocation.Prefer(s, r, available, must, size)
	if !errors.Is(err, allocation.ErrNoPod) {
		return ids, err
	}
	if !p.placesUnknown(r) {
		return nil, p.unknown(err)
	}
	stranger := allocation.Pod{Holding: placement.Holding{
		Pod:     placement.PodRef{Namespace: "unknown", Name: "unknown"},
		Request: placement.Request{Containers: []placement.Container{{Kind: placement.App, Units: gpu.Units(size)}}},
	}}
	s.Pods = append(slices.Clone(s.Pods), stranger)
	s.Known = nil
	ids, err = allocation.Prefer(s, r, available, must, size)
	if err == nil {
		p.log.Warn("placed without knowing the pod", zap.String("node", p.cfg.Node), zap.Int("units", size),
			zap.Strings("devices", deviceNames(s, ids)), zap.Duration("waited", p.cfg.PodWait))
	}
	return ids, err
}

func (p *Plugin) placesUnknown(r gpu.Resource) bool { return p.cfg.PlaceUnassigned && r == gpu.Memory }

func (p *Plugin) unknown(err error) error {
	why := "this node refuses pods that no scheduler of gpumem has placed"
	if p.cfg.PlaceUnassigned {
		why = "cores go to a pod that is known to ask for memory beside them"
	}
	return fmt.Errorf("%w: the API server has not told of it in %s, and %s", err, p.cfg.PodWait, why)
}

// Allocate tells containers which GPUs they got.
func (p *Plugin) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return p.allocate(ctx, gpu.Memory, req, func(g allocation.Grant, inv gpu.Inventory) *pluginapi.ContainerAllocateResponse {
		return response(g, inv, p.cfg)
	})
}

func (p *Plugin) allocate(ctx context.Context, r gpu.Resource, req *pluginapi.AllocateRequest, respond func(allocation.Grant, gpu.Inventory) *pluginapi.ContainerAllocateResponse) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		grant, inv, err := p.admit(ctx, r, slotIDs(c.GetDevicesIds()))
		if err != nil {
			return nil, asStatus(err)
		}
		p.log.Info("allocated", zap.String("node", p.cfg.Node), zap.Strings("devices", uuids(grant.Devices)), zap.Stringer("resource", r), zap.Int("slots", grant.Each))
		out.ContainerResponses = append(out.ContainerResponses, respond(grant, inv))
		p.mu.Lock()
		p.levels.handOut(grant.Slots, inv.Enforcement)
		p.mu.Unlock()
	}
	p.Kick()
	return out, nil
}

// admit reads the slots that the kubelet took, and waits for the pod to be
// known before it says that none asks for so much.
func (p *Plugin) admit(ctx context.Context, r gpu.Resource, ids []gpu.SlotID) (allocation.Grant, gpu.Inventory, error) {
	waiting, cancel := context.WithTimeout(ctx, p.cfg.PodWait)
	defer cancel()
	news := p.news()
	for {
		s, changed, _ := p.look(waiting)
		grant, err := allocation.Resolve(s, r, ids)
		if err != nil {
			p.log.Warn("refused", zap.String("node", p.cfg.Node), zap.Stringer("resource", r), zap.Int("slots", len(ids)), zap.Error(err))
			return allocation.Grant{}, gpu.Inventory{}, err
		}
		given, err := allocation.Admit(s, grant)
		if errors.Is(err, allocation.ErrNoPod) {
			if news.wait(waiting, changed) {
				continue
			}
			switch {
			case ctx.Err() != nil:
				err = fmt.Errorf("the kubelet did not wait: %w", ctx.Err())
			case p.placesUnknown(r):
				err = nil
			default:
				err = p.unknown(err)
			}
		}
		if err != nil {
			p.refuse(s, r, len(ids), err)
			return allocation.Grant{}, gpu.Inventory{}, err
		}
		p.remember(given)
		return grant, s.Inventory, nil
	}
}

// PreStartContainer finds out who holds the slots, now that the kubelet tells,
// and puts the pod's annotation right before the container runs.
func (p *Plugin) PreStartContainer(ctx context.Context, req *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	out := &pluginapi.PreStartContainerResponse{}
	ids := slotIDs(req.GetDevicesIds())
	defer p.Kick() // for what is not put right here
	s, _, asked := p.look(ctx)
	if slices.ContainsFunc(ids, gpu.SlotID.GPUShare) {
		p.log.Info("container of a pod starts that gpushare has placed", zap.String("node", p.cfg.Node), zap.Strings("slots", req.GetDevicesIds()))
		return out, nil // with the environment that gpushare's plugin gave it
	}
	grant, err := allocation.Resolve(s, gpu.Memory, ids)
	if err != nil {
		return nil, asStatus(err)
	}
	if asked != nil {
		return out, nil // logged; what the kubelet accounts is right all the same
	}
	held, ok := allocation.Find(s.Held, gpu.Memory, ids)
	if !ok { // a plain init container: the kubelet does not list those
		p.log.Debug("container starts", zap.String("node", p.cfg.Node), zap.Strings("devices", uuids(grant.Devices)), zap.Int("units", grant.Each))
		return out, p.initMayStart(ctx, ids)
	}
	i := slices.IndexFunc(s.Pods, func(pod allocation.Pod) bool { return held.Of(pod.Pod) })
	if i < 0 {
		p.log.Info("container of a pod starts that the API server has not told of", zap.String("node", p.cfg.Node),
			zap.String("pod", held.Namespace+"/"+held.Name), zap.String("container", held.Container))
		return out, nil
	}
	pod := s.Pods[i]
	p.log.Info("container starts", zap.String("node", p.cfg.Node), zap.Stringer("pod", pod.Pod), zap.String("uid", pod.Pod.UID),
		zap.String("container", held.Container), zap.Strings("devices", uuids(grant.Devices)), zap.Int("units", grant.Each))
	if actual := allocation.Actual(s, pod); !actual.None() && (len(actual.Shares) != pod.Request.GPUs() || len(actual.Shares) != len(grant.Devices)) {
		p.report(pod.Pod, mixed(pod, actual))
		return nil, asStatus(errors.New(mixed(pod, actual)))
	}
	if err := p.mayStart(ctx, s, pod, held.Container); err != nil {
		return nil, p.unenforced(pod.Pod, err)
	}
	writing, cancel := context.WithTimeout(ctx, p.cfg.WriteWait)
	defer cancel()
	if err := p.correctAll(writing, s); err != nil {
		p.log.Warn("assignments not corrected before the start", zap.Stringer("pod", pod.Pod), zap.String("uid", pod.Pod.UID), zap.Error(err))
	}
	return out, nil
}

// kubeletPause is how long to wait before the kubelet is asked again that did not
// answer: it answers a few questions at once, and then one each 10 ms.
const kubeletPause = 20 * time.Millisecond

// look gathers the state of the node, asking the kubelet. The error is the
// kubelet's; the state then has what it said last and what it was given since,
// and does not say which pods it lists.
func (p *Plugin) look(ctx context.Context) (allocation.State, <-chan struct{}, error) {
	asking, cancel := context.WithTimeout(ctx, p.cfg.KubeletWait)
	defer cancel()
	for {
		pods, _, changed := p.pods.Pods() // before the kubelet is asked: see allocation.Reconcile
		held, known, err := p.kubelet.List(asking)
		if err == nil {
			s := p.heardOf(pods, held)
			s.Known = known
			return s, changed, nil
		}
		select {
		case <-asking.Done():
			p.log.Warn("the kubelet does not tell what it has given", zap.String("node", p.cfg.Node), zap.Error(err))
			return p.recall(pods), changed, err
		case <-time.After(kubeletPause):
		}
	}
}

// heardOf is the state of the node with what its pods hold, which is remembered
// for when the kubelet does not tell.
func (p *Plugin) heardOf(pods []allocation.Pod, held []allocation.Held) allocation.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.heard = held, true
	p.forgetTold(pods)
	return p.state(pods, held)
}

// recall is the state of the node by what the kubelet told last, and by what it
// was given since.
func (p *Plugin) recall(pods []allocation.Pod) allocation.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetTold(pods)
	s := p.state(pods, p.held).Recall()
	s.Blind = !p.heard
	return s
}

func (p *Plugin) cordoned() []gpu.UUID {
	if p.cfg.Cordoned == nil {
		return nil
	}
	return p.cfg.Cordoned()
}

// state is the state of the node. The caller holds mu.
func (p *Plugin) state(pods []allocation.Pod, held []allocation.Held) allocation.State {
	o, _ := p.offer()
	return allocation.State{
		Inventory: o.inventory, Slots: o.slots, Pods: p.planned(pods), Held: held, Given: slices.Clone(p.given),
		Cordoned: p.cordoned(), Policy: p.cfg.Policy, PlaceUnassigned: p.cfg.PlaceUnassigned,
	}.WithUnlisted()
}

// planned adds to pods what was planned for them. What is written of a pod that the kubelet has
// admitted may have been changed by its owner since. The caller holds mu.
func (p *Plugin) planned(pods []allocation.Pod) []allocation.Pod {
	pods = slices.Clone(pods)
	for i, pod := range pods {
		plan, known := p.plans[pod.Pod.UID]
		if !known || !pod.Settled {
			plan = pod.Assignment
			p.plans[pod.Pod.UID] = plan
		}
		pods[i].Plan = &plan
	}
	return pods
}

// remember keeps what a container is given until the kubelet has told of it.
func (p *Plugin) remember(given allocation.Given) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(given.Slots) > 0 {
		p.given = append(p.given, given)
	}
}

func (p *Plugin) forgetGiven() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given = nil
}

// forgetTold drops what was given to pods that are gone, and of pods that are
// settled what the kubelet has listed, as theirs or as another's. Before that, an answer
// may be older than the one before it. Of some it lists nothing. The caller holds mu.
func (p *Plugin) forgetTold(pods []allocation.Pod) {
	p.given = slices.DeleteFunc(p.given, func(g allocation.Given) bool {
		i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == g.Pod })
		return i < 0 || pods[i].Settled && (!pods[i].Unlisted() && g.Told(p.held) || g.Another(p.held))
	})
}

// refuse logs a refusal, and tells the pod of it if it is clear which it is.
func (p *Plugin) refuse(s allocation.State, r gpu.Resource, size int, err error) {
	p.log.Warn("refused", zap.String("node", p.cfg.Node), zap.Stringer("resource", r), zap.Int("slots", size), zap.Error(err))
	var meant []placement.PodRef
	for _, pod := range s.Pods {
		asks := slices.ContainsFunc(pod.Request.Containers, func(c placement.Container) bool { return allocation.Amount(r, c) == size })
		served := slices.ContainsFunc(s.Held, func(h allocation.Held) bool { return h.Of(pod.Pod) && len(h.Only(r)) > 0 })
		if asks && !served && (s.Known == nil || s.Known[pod.Pod.String()]) {
			meant = append(meant, pod.Pod)
		}
	}
	if len(meant) == 1 {
		p.events.Pod(meant[0], true, "GPUMemoryRefused", err.Error())
	}
}

// asStatus gives an error to the kubelet, which shows its text in the pod's
// status.
func asStatus(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, allocation.ErrNoPod):
		return status.Error(codes.NotFound, err.Error())
	default:
		return status.Error(codes.FailedPrecondition, err.Error())
	}
}

func slotIDs(ids []string) []gpu.SlotID {
	out := make([]gpu.SlotID, 0, len(ids))
	for _, id := range ids {
		out = append(out, gpu.SlotID(id))
	}
	return out
}

func plain(ids []gpu.SlotID) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, string(id))
	}
	return out
}

func uuids(devices []gpu.Device) []string {
	out := make([]string, 0, len(devices))
	for _, d := range devices {
		out = append(out, string(d.UUID))
	}
	return out
}

// deviceNames returns the GPUs that slots are of, for a log line.
func deviceNames(s allocation.State, ids []gpu.SlotID) []string {
	var out []string
	for _, id := range ids {
		if d, err := s.Slots.Device(id); err == nil && !slices.Contains(out, string(d.UUID)) {
			out = append(out, string(d.UUID))
		}
	}
	return out
}
