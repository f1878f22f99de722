package enforcement

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Hold makes sure that the kernel holds a container to its grant on each of its
// GPUs: the limit is written, where nobody else writes it, and read back. What came of
// it counts for the node: while limits cannot be written, its level is not kernel.
func (n *Node) Hold(group string, devices []gpu.Device, limitMiB int64) error {
	err := n.hold(group, devices, limitMiB)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.written, n.writtenAt = err, time.Now()
	return err
}

func (n *Node) hold(group string, devices []gpu.Device, limitMiB int64) error {
	regions, writes := n.regionsOf(devices)
	if len(regions) < len(devices) {
		return fmt.Errorf("dmem has a region of %d of the %d GPUs", len(regions), len(devices))
	}
	if writes {
		return n.probes.Cgroups.Limit(group, regions, limitMiB)
	}
	limits, err := n.probes.Cgroups.Limits(group)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range regions {
		if !has(limits, r.Name, uint64(limitMiB)*mib) {
			errs = append(errs, fmt.Errorf("%s is to have a limit of %d MiB, and NVIDIA's hook has not set it: dmem.max reads %v", r.Name, limitMiB, limits))
		}
	}
	return errors.Join(errs...)
}

func has(limits []Region, name string, bytes uint64) bool {
	for _, l := range limits {
		if l.Name == name && Within(l.Bytes, bytes) {
			return true
		}
	}
	return false
}

// GroupOf returns the control group that a container runtime gives to a container,
// below the root, from what the container's specification says (OCI runtime
// specification, "cgroupsPath"): a path, or for systemd "slice:prefix:name".
func GroupOf(cgroupsPath string) (string, error) {
	parts := strings.Split(cgroupsPath, ":")
	switch {
	case len(parts) == 1 && strings.Trim(cgroupsPath, "/") != "":
		return cgroupsPath, nil
	case len(parts) == 3 && strings.HasSuffix(parts[0], ".slice") && parts[2] != "":
		return expandSlice(parts[0]) + "/" + parts[1] + "-" + parts[2] + ".scope", nil
	default:
		return "", fmt.Errorf("control group %q is neither a path nor slice:prefix:name", cgroupsPath)
	}
}

// expandSlice returns where systemd has a slice: each dash in its name is a step
// down (systemd.slice(5)).
func expandSlice(slice string) string {
	name := strings.TrimSuffix(slice, ".slice")
	var path, prefix string
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		path += "/" + prefix + ".slice"
		prefix += "-"
	}
	return path
}
