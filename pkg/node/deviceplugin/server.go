package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/render"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

// Server handles the kubelet's calls for one resource. Runner registers a server of memory, and one of cores.
type Server struct {
	pluginapi.UnimplementedDevicePluginServer

	resource   gpu.Resource
	cfg        Config
	offers     *grants.Offers
	state      *grants.State
	reconciler *grants.Reconciler
	pods       grants.Pods
	events     event.Events
	log        *zap.Logger
}

// Cores returns a server of cores with the same state, so that a container's memory and cores are on the same
// GPU.
func (p *Server) Cores() *Server {
	cores := *p
	cores.resource = gpu.Cores
	return &cores
}

// GetDevicePluginOptions implements pluginapi.DevicePluginServer. Before a container starts, the kubelet calls
// only the server of memory, because the container with the memory slots also has the cores.
func (p *Server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: p.resource == gpu.Memory, GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch streams the device list, and resends it on every change.
func (p *Server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	r := p.resource
	if r == gpu.Memory {
		p.state.Registered()
	}
	var last *pluginapi.ListAndWatchResponse
	for {
		o, changed := p.offers.Current()
		if list := o.List(r); last == nil || !proto.Equal(list, last) {
			if err := stream.Send(list); err != nil {
				return fmt.Errorf("send the devices: %w", err)
			}
			p.log.Info("devices sent", zap.String("node", p.cfg.Node), zap.Int("devices", len(o.Inventory.Devices)), zap.Stringer("resource", r), zap.Int("slots", len(list.GetDevices())))
			last = list
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation returns IDs of the GPUs of the pod that the kubelet most likely admits.
func (p *Server) GetPreferredAllocation(ctx context.Context, req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		ids, err := p.prefer(ctx, p.resource, convert[gpu.SlotID](c.GetAvailableDeviceIDs()), convert[gpu.SlotID](c.GetMustIncludeDeviceIDs()), int(c.GetAllocationSize()))
		if err != nil {
			return nil, asStatus(err)
		}
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: convert[string](ids)})
	}
	return out, nil
}

// Allocate records the grants of containers, and returns their environments and devices.
func (p *Server) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	r := p.resource
	out, log := &pluginapi.AllocateResponse{}, operation.Log(ctx, p.log)
	for _, c := range req.GetContainerRequests() {
		possible, grant, inv, err := p.admit(ctx, r, convert[gpu.SlotID](c.GetDevicesIds()))
		if err != nil {
			return nil, asStatus(err)
		}
		inv.Enforcement = inv.LevelFor(len(grant.Devices))
		log.Info("allocated", zap.String("node", p.cfg.Node), zap.Strings("devices", grant.UUIDs()), zap.Stringer("resource", r), zap.Int("slots", grant.SlotsPerDevice))
		response := p.cfg.Containers.Response(r, grant, inv)
		p.resolveNames(response.GetEnvs(), possible)
		var to allocation.Attributed
		if len(possible) > 0 {
			to = possible[0]
		}
		p.state.Put(grants.NewGrant(to, grant, inv, response))
		out.ContainerResponses = append(out.ContainerResponses, response)
	}
	p.reconciler.Kick()
	return out, nil
}

// resolveNames changes the variables of a container whose pod sets the same settings under second names
// (render.ResolveNames). If the kubelet may have called for several pods that need different changes, resolveNames
// changes nothing, because one pod's variables must not change another pod's environment. Second names that the image
// sets are known only to the container runtime, so package nri resolves these.
func (p *Server) resolveNames(env map[string]string, possible []allocation.Attributed) {
	pods, _, _ := p.pods.Pods()
	var changed map[string]string
	for n, to := range possible {
		var seconds map[string]string
		if i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == to.Pod }); i >= 0 {
			seconds = pods[i].Seconds[to.Container.Name]
		}
		one := render.ResolveNames(env, seconds)
		if n > 0 && !maps.Equal(one, changed) {
			return
		}
		changed = one
	}
	for name, value := range changed {
		if env[name] = value; value == "" {
			delete(env, name)
		}
	}
}

// PreStartContainer finds the container with the slots in the kubelet's list, and corrects the pod's
// annotations before the container runs. It returns an error if the container must not start.
func (p *Server) PreStartContainer(ctx context.Context, req *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	out, log := &pluginapi.PreStartContainerResponse{}, operation.Log(ctx, p.log)
	ids := convert[gpu.SlotID](req.GetDevicesIds())
	defer p.reconciler.Kick() // for the remaining corrections
	s, _, asked := p.state.Snapshot(ctx)
	if slices.ContainsFunc(ids, gpu.SlotID.GPUShare) {
		log.Info("container of a pod starts that gpushare has placed", zap.String("node", p.cfg.Node), zap.Strings("slots", req.GetDevicesIds()))
		return out, nil // with the environment from gpushare's plugin
	}
	grant, err := allocation.Resolve(s, gpu.Memory, ids)
	if err != nil {
		return nil, asStatus(err)
	}
	if asked != nil {
		return out, p.unlistedMayStart(ctx, s, "container", grant) // Snapshot has logged the error, and the slots are certain without the list
	}
	allocated, ok := findAllocated(s.Allocated, ids)
	if !ok { // a plain init container: the kubelet does not list those
		log.Debug("container starts", zap.String("node", p.cfg.Node), zap.Strings("devices", grant.UUIDs()), zap.Int("units", grant.SlotsPerDevice))
		return out, p.unlistedMayStart(ctx, s, "init container", grant)
	}
	i := slices.IndexFunc(s.Pods, func(pod allocation.Pod) bool { return allocated.BelongsTo(pod.Pod) })
	if i < 0 {
		log.Info("container of a pod starts that the API server has not reported", zap.String("node", p.cfg.Node),
			zap.String("pod", allocated.Namespace+"/"+allocated.Name), zap.String("container", allocated.Container))
		return out, p.unlistedMayStart(ctx, s, "container", grant)
	}
	pod := s.Pods[i]
	log.Info("container starts", zap.String("node", p.cfg.Node), zap.Stringer("pod", pod.Pod), zap.String("uid", pod.Pod.UID),
		zap.String("container", allocated.Container), zap.Strings("devices", grant.UUIDs()), zap.Int("units", grant.SlotsPerDevice))
	if actual := allocation.Actual(s, pod); !actual.None() {
		for _, gpus := range []int{len(actual.Shares), len(grant.Devices)} {
			if gpus != pod.Request.GPUs() {
				return nil, asStatus(p.reconciler.Mixed(ctx, pod, gpus))
			}
		}
	}
	if err := p.mayStart(ctx, s, pod, allocated, grant); err != nil {
		return nil, p.unenforced(ctx, pod.Pod, err)
	}
	writing, cancel := context.WithTimeout(ctx, p.cfg.WriteWait)
	defer cancel()
	if err := errors.Join(p.reconciler.Correct(writing, s), p.reconciler.WriteLevel(writing, pod, s)); err != nil {
		log.Warn("assignments not corrected before the start", zap.Stringer("pod", pod.Pod), zap.String("uid", pod.Pod.UID), zap.Error(err))
	}
	return out, nil
}
