package claims

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/nodeapi"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// Pods lists the node's pods that reference ResourceClaims.
type Pods interface {
	usage.Pods

	ClaimUsers() []nodeapi.ClaimUser
	Missing() string
}

// Users finds the pods of a node that use prepared claims. It provides each container's grant to package usage.
type Users struct {
	Pods

	driver *Driver
}

// NewUsers returns the users of a driver's claims.
func NewUsers(pods Pods, driver *Driver) *Users { return &Users{driver: driver, Pods: pods} }

// user is a pod with the prepared claims of its containers.
type user struct {
	placement.PodRef
	containers map[string][]Claim
}

// listUsers returns the pods that use a prepared claim.
func (u *Users) listUsers() (users []user) {
	prepared := make(map[types.NamespacedName]Claim)
	for _, c := range u.driver.Claims() {
		prepared[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	for _, pod := range u.ClaimUsers() {
		one := user{PodRef: pod.Pod, containers: make(map[string][]Claim)}
		for container, names := range pod.Containers {
			for _, name := range names {
				if c, ok := prepared[types.NamespacedName{Namespace: pod.Pod.Namespace, Name: name}]; ok {
					one.containers[container] = append(one.containers[container], c)
				}
			}
		}
		if len(one.containers) > 0 {
			users = append(users, one)
		}
	}
	return users
}

// claim reports whether a container uses a claim, according to its pod's spec. It returns an error if the watch
// has delivered no pod of this name that uses a prepared claim.
func (u *Users) claim(namespace, pod, container string, uid types.UID) (uses bool, err error) {
	all := u.listUsers()
	i := slices.IndexFunc(all, func(one user) bool { return one.Namespace == namespace && one.Name == pod })
	if i < 0 {
		return false, errors.New("the API server has not reported a pod that uses a prepared claim by this name")
	}
	return slices.ContainsFunc(all[i].containers[container], func(c Claim) bool { return c.UID == uid }), nil
}

// Container implements usage.Pods.
func (u *Users) Container(id string) (pod placement.PodRef, name string, ok bool) {
	pod, name, ok = u.Pods.Container(id)
	if !ok || !u.HoldsMemory(pod.UID) {
		return placement.PodRef{}, "", false
	}
	return pod, name, true
}

// HoldsMemory implements usage.Pods. A pod holds its claim from the claim's preparation, even before the watch
// delivers the pod.
func (u *Users) HoldsMemory(uid string) bool {
	return slices.ContainsFunc(u.driver.Claims(), func(c Claim) bool { return c.Pod != nil && string(c.Pod.UID) == uid }) ||
		slices.ContainsFunc(u.listUsers(), func(p user) bool { return p.UID == uid })
}

// Grants implements usage.Grants. If several containers use a claim, Grants lists it for each of them.
func (u *Users) Grants(context.Context) (out []usage.Grant, err error) {
	if missing := u.Missing(); missing != "" {
		return nil, errors.New(missing)
	}
	for _, p := range u.listUsers() {
		for container, claims := range p.containers {
			for _, c := range claims {
				for _, s := range c.Shares {
					out = append(out, usage.Grant{Namespace: p.Namespace, Name: p.Name, Container: container, Device: s.UUID, Bytes: uint64(s.MiB) * mib})
				}
			}
		}
	}
	return out, nil
}
