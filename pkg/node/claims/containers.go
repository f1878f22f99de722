package claims

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/render"
)

// claimOf is the variable that contains the UID of a container's claim. A value from a claim's CDI device is
// reliable, because it replaces the pod's own value.
const claimOf = "GPUMEM_CLAIM"

// Containers implements nri.Containers for the containers of prepared claims.
type Containers struct {
	driver *Driver
	kernel render.Kernel
	users  *Users
}

// Containers returns the Containers of the driver. The parameter kernel sets the limits of control groups.
func (d *Driver) Containers(kernel render.Kernel, users *Users) Containers {
	return Containers{driver: d, kernel: kernel, users: users}
}

// Environment returns ok == false for a container that uses a claim: the values from the claim's CDI device have
// already replaced the pod's own values. For any other container of a pod with a claim, it returns ok == true and
// no variables, because such a container must have none of gpumem's variables. Environment checks the pod's spec,
// because a container can set claimOf to the UID of any claim.
func (of Containers) Environment(ctx context.Context, namespace, pod, container string, environment map[string]string) (env map[string]string, ok bool, err error) {
	if environment[claimOf] == "" {
		return nil, of.HoldsMemory(ctx, namespace, pod), nil
	}
	uses, err := of.users.claim(namespace, pod, container, types.UID(environment[claimOf]))
	return nil, err == nil && !uses, err
}

// HoldsMemory reports whether a claim is prepared for a pod. The driver records only the first pod of a claim.
// For other pods that share the claim, HoldsMemory searches the claim's users.
func (of Containers) HoldsMemory(_ context.Context, namespace, pod string) bool {
	return slices.ContainsFunc(of.driver.Claims(), func(c Claim) bool { return c.Namespace == namespace && c.Pod != nil && c.Pod.Name == pod }) ||
		slices.ContainsFunc(of.users.listUsers(), func(u user) bool { return u.Namespace == namespace && u.Name == pod })
}

// SetLimit sets a container's limit before its program runs, or later if the container started without the limit.
// At the level mps, it only checks the level. It returns an error while the claim's level does not hold.
func (of Containers) SetLimit(ctx context.Context, namespace, pod, container, cgroupsPath string, environment map[string]string) error {
	uid := types.UID(environment[claimOf])
	if uid == "" {
		return nil // it has no claim
	}
	prepared := of.driver.Claims()
	i := slices.IndexFunc(prepared, func(c Claim) bool { return c.UID == uid && c.Namespace == namespace })
	uses, unknown := of.users.claim(namespace, pod, container, uid)
	switch {
	case unknown == nil && !uses:
		return errors.New("it does not use the claim that its environment names")
	case i < 0:
		return errors.New("its claim is not prepared")
	}
	c := prepared[i]
	switch {
	case c.Enforcement == gpu.EnforcementMPS:
		return of.driver.ready(ctx, c)
	case c.Enforcement != gpu.EnforcementKernel:
		return nil
	}
	offer, _ := of.driver.offers.Current()
	inv := offer.Inventory
	inv.UnitMiB = c.UnitMiB
	memory, _, err := c.grant(inv)
	if err != nil {
		return err
	}
	return render.Limit(ctx, of.kernel, cgroupsPath, memory.Devices, render.LimitMiB(memory, inv))
}

// Release releases the reservations of a container that has ended, if it may have had a limit. Its claim may
// already be unprepared.
func (of Containers) Release(ctx context.Context, cgroupsPath string, environment map[string]string) error {
	if environment[claimOf] == "" {
		return nil
	}
	return render.Release(ctx, of.kernel, cgroupsPath, environment)
}
