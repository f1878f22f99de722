package allocation

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// kubelet implements the relevant rules of the kubelet: k8s.io/kubernetes/pkg/kubelet/cm/devicemanager,
// v1.36.3. It has two resources, and a plugin that answers like gpumem's.
type kubelet struct {
	random *rand.Rand
	slots  []gpu.SlotID // from the plugin's list

	pods []*admitted

	// forgotten contains slots that the kubelet wrongly considers free until it counts the allocated slots
	// again (UpdateAllocatedDevices): its last count happened during their allocation.
	forgotten map[gpu.SlotID]bool

	prefer   func(r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error)
	allocate func(r gpu.Resource, ids []gpu.SlotID) error
}

// admitted is a pod that the kubelet has received.
type admitted struct {
	pod   placement.PodRef
	slots map[string][]gpu.SlotID // by container
	names []string                // containers that PodResources lists: no plain init containers
}

// admit requests the devices of a pod's containers, one after the other. An error is final for the pod. It
// returns the slots of each container.
func (k *kubelet) admit(ref placement.PodRef, req placement.Request) (map[string][]gpu.SlotID, error) {
	p := &admitted{pod: ref, slots: make(map[string][]gpu.SlotID)}
	k.pods = append(k.pods, p) // PodResources lists the pod from now on
	reuse := make(map[gpu.SlotID]bool)
	for _, c := range req.Containers.All() {
		if c.Kind != placement.Init {
			p.names = append(p.names, c.Name)
		}
		// The resources are in the order of a map.
		for _, r := range [][]gpu.Resource{{gpu.Memory, gpu.Cores}, {gpu.Cores, gpu.Memory}}[k.random.IntN(2)] {
			if Amount(r, c) == 0 {
				continue
			}
			ids, err := k.serve(r, reuse, Amount(r, c))
			if err != nil {
				k.remove(ref) // the pod has failed, and is no longer active
				return nil, fmt.Errorf("container %s: %w", c.Name, err)
			}
			p.slots[c.Name] = append(p.slots[c.Name], ids...)
			countsMeanwhile := k.random.IntN(8) == 0
			for _, id := range ids {
				reuse[id] = c.Kind == placement.Init
				k.forgotten[id] = countsMeanwhile && c.Kind != placement.Init
			}
		}
	}
	return p.slots, nil
}

// serve implements devicesToAllocate and the following call of Allocate.
func (k *kubelet) serve(r gpu.Resource, reuse map[gpu.SlotID]bool, size int) ([]gpu.SlotID, error) {
	var must []gpu.SlotID
	for id, ok := range reuse {
		if ok && id.Resource() == r {
			must = append(must, id)
		}
	}
	slices.Sort(must)
	k.shuffle(must)
	if len(must) >= size {
		// The kubelet first uses the slots that init containers leave, in the order of a map, without a call of
		// GetPreferredAllocation.
		ids := must[:size]
		return ids, k.allocate(r, ids)
	}
	available := slices.Concat(k.free(r), must)
	k.shuffle(available)
	if len(available) < size {
		return nil, fmt.Errorf("%d slots are wanted and %d available", size, len(available))
	}
	preferred, err := k.prefer(r, available, must, size)
	if err != nil {
		return nil, err
	}
	// The kubelet replaces missing preferred slots by random ones.
	ids := slices.Clone(must)
	for _, id := range slices.Concat(preferred, available) {
		if len(ids) < size && slices.Contains(available, id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, k.allocate(r, ids)
}

func (k *kubelet) shuffle(ids []gpu.SlotID) {
	k.random.Shuffle(len(ids), func(a, b int) { ids[a], ids[b] = ids[b], ids[a] })
}

func (k *kubelet) free(r gpu.Resource) []gpu.SlotID {
	taken := make(map[gpu.SlotID]bool)
	for _, p := range k.pods {
		for _, ids := range p.slots {
			for _, id := range ids {
				taken[id] = !k.forgotten[id]
			}
		}
	}
	var out []gpu.SlotID
	for _, id := range k.slots {
		if !taken[id] && id.Resource() == r {
			out = append(out, id)
		}
	}
	return out
}

func (k *kubelet) remove(ref placement.PodRef) {
	k.pods = slices.DeleteFunc(k.pods, func(p *admitted) bool { return p.pod == ref })
	clear(k.forgotten)
}

// podResources implements List of the PodResources API, with names and no UIDs.
func (k *kubelet) podResources() (held []Allocated, known map[string]bool) {
	known = make(map[string]bool)
	for _, p := range k.pods {
		known[p.pod.String()] = true
		for _, name := range p.names {
			if len(p.slots[name]) == 0 {
				continue // listed, without allocations
			}
			held = append(held, Allocated{Namespace: p.pod.Namespace, Name: p.pod.Name, Container: name, Slots: p.slots[name]})
		}
	}
	return held, known
}

// all returns all slots of a pod, including its init containers' slots.
func (k *kubelet) all(ref placement.PodRef) []gpu.SlotID {
	var out []gpu.SlotID
	for _, p := range k.pods {
		if p.pod == ref {
			for _, ids := range p.slots {
				out = append(out, ids...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
