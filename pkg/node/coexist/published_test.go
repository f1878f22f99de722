package coexist

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// GPUs belong to NVIDIA's driver while it publishes them, whole or in part. gpumem's own ResourceSlices exclude no
// GPU, and neither do devices other than GPUs.
func TestGPUsThatAnotherDriverPublishes(t *testing.T) {
	slice := func(driver, attribute, value string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, Devices: []resourceapi.Device{{
			Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				resourceapi.QualifiedName(attribute): {StringValue: &value}, "index": {IntValue: new(int64(0))},
			},
		}}}}
	}
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(
			slice("gpumem.dev", "uuid", string(uuid(0))), slice("gpu.nvidia.com", "gpu.nvidia.com/uuid", string(uuid(1))),
			slice("mig.nvidia.com", "parentUUID", string(uuid(2))), slice("example.com", "serial", string(uuid(3))),
		)
		gpus := machine(5)
		gpus.Devices[4].Parent = uuid(1) // a MIG instance of that GPU
		n := NewFilter(Selector{}, memory, 5*time.Second, prober(gpus), &kubelet{}, &events{}, zaptest.NewLogger(t))
		n.SetPublished(NewPublished(client, "n1", "gpumem.dev"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		<-n.Looked()
		const by = " published by driver "
		if got, want := offered(n), "0;1"+by+"gpu.nvidia.com, which hands it out;2"+by+"mig.nvidia.com, which hands it out;3;4"+by+"gpu.nvidia.com, which hands it out;"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for _, driver := range []string{"gpu.nvidia.com", "mig.nvidia.com"} {
			if err := client.ResourceV1().ResourceSlices().Delete(ctx, driver, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if got := offered(n); strings.Contains(got, "published") {
			t.Errorf("once the others are gone: %q", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
