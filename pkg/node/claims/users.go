package claims

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// Users are the pods of a node that use prepared claims, and what these grant to each container, for
// who compares it with what containers use (package usage).
type Users struct {
	driver  *Driver
	factory informers.SharedInformerFactory
	pods    listers.PodLister
	synced  func() bool
}

// NewUsers returns a view that is empty until it runs.
func NewUsers(client kubernetes.Interface, node string, driver *Driver) *Users {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		}),
		informers.WithTransform(trimUser),
	)
	pods := factory.Core().V1().Pods()
	return &Users{driver: driver, factory: factory, pods: pods.Lister(), synced: pods.Informer().HasSynced}
}

// Run watches until the context is done.
func (u *Users) Run(ctx context.Context) error {
	u.factory.StartWithContext(ctx)
	<-ctx.Done()
	return nil
}

// trimUser keeps of a pod what is read here: the watch has every pod of the node.
func trimUser(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	out := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
	out.Spec.ResourceClaims, out.Status.ResourceClaimStatuses = pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses
	if len(out.Spec.ResourceClaims) == 0 {
		return out, nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		out.Spec.Containers = append(out.Spec.Containers, v1.Container{Name: c.Name, Resources: v1.ResourceRequirements{Claims: c.Resources.Claims}})
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, v1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID})
	}
	return out, nil
}

// user is a pod with the claims that are prepared of those that it names, by its own names for them.
type user struct {
	*v1.Pod
	claims map[string]Claim
}

func (u *Users) all() (users []user) {
	prepared := make(map[types.NamespacedName]Claim)
	for _, c := range u.driver.Claims() {
		prepared[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	pods, _ := u.pods.List(labels.Everything()) // of memory: it does not fail
	for _, pod := range pods {
		claims := make(map[string]Claim)
		for i := range pod.Spec.ResourceClaims {
			of := &pod.Spec.ResourceClaims[i]
			name, _, err := resourceclaim.Name(pod, of)
			if err != nil || name == nil {
				continue // it is not made yet, or is none
			}
			if c, ok := prepared[types.NamespacedName{Namespace: pod.Namespace, Name: *name}]; ok {
				claims[of.Name] = c
			}
		}
		if len(claims) > 0 {
			users = append(users, user{pod, claims})
		}
	}
	return users
}

// Container implements usage.Pods.
func (u *Users) Container(id string) (pod placement.PodRef, name string, ok bool) {
	for _, p := range u.all() {
		if name, ok := nodepods.ContainerNames(p.Pod)[id]; ok {
			return api.Ref(p.Pod), name, true
		}
	}
	return pod, "", false
}

// Holds implements usage.Pods. A pod holds its claim from when it is prepared, seen or not.
func (u *Users) Holds(uid string) bool {
	return slices.ContainsFunc(u.driver.Claims(), func(c Claim) bool { return c.Pod != nil && string(c.Pod.UID) == uid }) ||
		slices.ContainsFunc(u.all(), func(p user) bool { return string(p.UID) == uid })
}

// Grants implements usage.Grants. Each container has all of the claims that it uses.
func (u *Users) Grants(context.Context) (out []usage.Grant, err error) {
	if !u.synced() {
		return nil, errors.New("the pods of the node have not been listed yet")
	}
	for _, p := range u.all() {
		for _, c := range p.Spec.Containers {
			for _, used := range c.Resources.Claims {
				for _, s := range p.claims[used.Name].Shares {
					out = append(out, usage.Grant{Namespace: p.Namespace, Name: p.Name, Container: c.Name, Device: s.UUID, Bytes: uint64(s.MiB) * mib})
				}
			}
		}
	}
	return out, nil
}
