package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// handOutByClaims has the node hand out its GPUs by claims until the test ends. The pods that the machine
// makes ask by claims from then on.
func (m *machine) handOutByClaims() {
	m.Helper()
	m.upgrade("claims.enabled=true")
	label := func(value string) {
		if _, err := suite.stack.Kubectl(m.ctx, m.cluster, "label", "node", m.node, "--overwrite", m.domain+"/api"+value); err != nil {
			m.Error(err)
		}
	}
	m.atEnd(func() {
		label("-")
		m.eventually("the node offers "+gpuMem+" again", func() (bool, string) {
			node, err := m.client.CoreV1().Nodes().Get(m.ctx, m.node, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			units := node.Status.Allocatable[gpuMem]
			return units.Value() == 2*t4, units.String()
		})
	})
	label("=claims")
	m.eventually("the node publishes its GPUs", func() (bool, string) {
		published, err := m.client.ResourceV1().ResourceSlices().List(m.ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + m.domain})
		if err != nil || len(published.Items) != 1 {
			return false, fmt.Sprint(published, err)
		}
		return len(published.Items[0].Spec.Devices) == len(m.gpus.GPUs), fmt.Sprint(published.Items[0].Spec.Devices)
	})
	m.byClaims = true
}

// create makes a pod, with claims where the node hands out its GPUs so.
func (m *machine) create(pod *v1.Pod) *v1.Pod {
	m.Helper()
	if m.byClaims {
		m.claim(pod)
	}
	return m.env.create(pod)
}

// levelOf returns the level that a pod was promised. Claims have no assignment: a container of it tells.
func (m *machine) levelOf(name string) string {
	m.Helper()
	if m.byClaims {
		return m.environment(name, "level")["GPUMEM_ENFORCEMENT"]
	}
	return m.env.levelOf(name)
}

// claim has a pod ask by claims for what its containers ask for of the extended resource. Each has a claim
// of its own. Plain init containers, which run one after the other, share one: with the extended resource
// they have the same memory too. Another container prints what it is given. The claims are made here and
// named, not made from templates: Kubernetes before 1.37 may forget the names of a pod's generated claims
// when it has several (kubernetes/kubernetes#138407).
func (m *machine) claim(pod *v1.Pod) {
	m.Helper()
	count := int64(1)
	if text := pod.Annotations[m.domain+"/gpu-count"]; text != "" {
		var err error
		if count, err = strconv.ParseInt(text, 10, 64); err != nil {
			m.Fatal(err)
		}
	}
	uuid := pod.Annotations[m.domain+"/gpu-uuid"]
	pod.Annotations = nil
	ask := func(c *v1.Container, name string) {
		units := c.Resources.Limits[gpuMem]
		c.Resources = v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: name}}}
		if slices.ContainsFunc(pod.Spec.ResourceClaims, func(one v1.PodResourceClaim) bool { return one.Name == name }) {
			return
		}
		claim := pod.Name + "-" + name
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimName: &claim})
		m.makeClaim(claim, units.Value()/count, count, uuid)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		units := c.Resources.Limits[gpuMem]
		if name := c.Name; c.RestartPolicy != nil {
			ask(c, name)
			continue
		}
		ask(c, "init-"+units.String())
	}
	for i := range pod.Spec.Containers {
		ask(&pod.Spec.Containers[i], pod.Spec.Containers[i].Name)
	}
	level := sample("level", 0, "-exit-after=100ms")
	level.Resources.Claims = pod.Spec.Containers[0].Resources.Claims
	pod.Spec.InitContainers = append([]v1.Container{level}, pod.Spec.InitContainers...)
}

// makeClaim makes a claim to so many GiB of each of some GPUs, or of the one with that UUID.
func (m *machine) makeClaim(name string, gib, count int64, uuid string) {
	m.Helper()
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: m.domain, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(gib<<30, resource.BinarySI)}},
	}
	if uuid != "" {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes[%q].uuid == %q", m.domain, uuid)}}}
	}
	claim := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}}}
	if count > 1 {
		claim.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: new(resourceapi.FullyQualifiedName(m.domain + "/uuid"))}}
	}
	_, err := m.client.ResourceV1().ResourceClaims(m.namespace).Create(m.ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: claim},
	}, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
}

// TestEveryLevelLimitsByClaims: the same program in the same ways, in pods with claims.
func TestEveryLevelLimitsByClaims(t *testing.T) {
	e := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	e.ctx = ctx
	m := newMachine(e)
	m.handOutByClaims()
	m.testEveryLevel()
}
