package clitest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

func labelsOf(component string) map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": "gpumem", "app.kubernetes.io/component": component}
}

// PluginSet returns the DaemonSet of the device plugin.
func PluginSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpumem-system", Name: "gpumem-device-plugin", UID: "uid-set", Labels: labelsOf("device-plugin")}}
}

// PluginPod returns the device plugin's pod on a node.
func PluginPod(node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpumem-system", Name: "plugin-" + node, UID: "uid-plugin", Labels: labelsOf("device-plugin"),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(PluginSet(), appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
		},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "p", Ports: []v1.ContainerPort{{Name: "probes", ContainerPort: 8012}}}}},
	}
}

// ExtenderSets returns the Deployment of the scheduler and its ReplicaSet.
func ExtenderSets() (*appsv1.Deployment, *appsv1.ReplicaSet) {
	d := ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack")
	return d, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "gpumem-system", Name: "gpumem-scheduler-1", UID: "uid-replicas", Labels: labelsOf("scheduler"),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
	}}
}

// ExtenderDeployment returns the Deployment of a scheduler with an extender for a domain.
func ExtenderDeployment(namespace, domain, policy string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpumem-scheduler", UID: "uid-deployment", Labels: labelsOf("scheduler")}}
	d.Spec.Template.Spec.InitContainers = []v1.Container{{Name: "gpumem-extender", Args: []string{"--resource-domain=" + domain, "--policy=" + policy}}}
	return d
}

// ExtenderPod returns a pod of a scheduler with an extender.
func ExtenderPod(name string) *v1.Pod {
	deployment, set := ExtenderSets()
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpumem-system", Name: name, Labels: labelsOf("scheduler"),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
		},
		Spec: deployment.Spec.Template.Spec,
	}
}

// Answer is the response to a proxied request.
type Answer struct {
	Text string
	Err  error
}

// DoRaw implements rest.ResponseWrapper.
func (a Answer) DoRaw(context.Context) ([]byte, error) { return []byte(a.Text), a.Err }

// Stream implements rest.ResponseWrapper.
func (a Answer) Stream(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(a.Text)), a.Err
}

// Measured returns a client of OddCluster with device plugins on gpu-a and gpu-c. The plugin on gpu-c does
// not answer.
func Measured(t *testing.T) *fake.Clientset {
	objects := append(OddCluster(t), PluginSet(), PluginPod("gpu-a"), PluginPod("gpu-c"))
	for _, object := range objects {
		if pod, ok := object.(*v1.Pod); ok && pod.Namespace == "ml" {
			pod.Labels = map[string]string{"team": "vision"}
		}
	}
	client := fake.NewClientset(objects...)
	client.AddProxyReactor("pods", func(action clienttesting.Action) (bool, restclient.ResponseWrapper, error) {
		get := action.(clienttesting.ProxyGetAction)
		if get.GetName() != "plugin-gpu-a" || get.GetPort() != "8012" || get.GetPath() != "/metrics" {
			return true, Answer{Err: fmt.Errorf("no answer from %s:%s", get.GetName(), get.GetPort())}, nil
		}
		return true, Answer{Text: `
# TYPE gpumem_device_plugin_gpu_memory_used_bytes gauge
gpumem_device_plugin_gpu_memory_used_bytes{gpu="0",uuid="GPU-gpu-a-0",model="x"} 9.663676416e+09
# TYPE gpumem_device_plugin_container_memory_used_bytes gauge
gpumem_device_plugin_container_memory_used_bytes{namespace="ml",pod="train",container="main",uuid="GPU-gpu-a-0"} 2.147483648e+09
gpumem_device_plugin_container_memory_used_bytes{namespace="ml",pod="leaving",container="main",uuid="GPU-gpu-a-0"} 1.3958643712e+10
# TYPE gpumem_device_plugin_container_memory_peak_bytes gauge
gpumem_device_plugin_container_memory_peak_bytes{namespace="ml",pod="train",container="main",uuid="GPU-gpu-a-0"} 3.221225472e+09
gpumem_device_plugin_container_memory_peak_bytes{namespace="ml",pod="leaving",container="main",uuid="GPU-gpu-a-0"} 1.3958643712e+10
# TYPE gpumem_device_plugin_container_sm_utilization_ratio gauge
gpumem_device_plugin_container_sm_utilization_ratio{namespace="ml",pod="train",container="main",uuid="GPU-gpu-a-0"} 0.29
`}, nil
	})
	return client
}
