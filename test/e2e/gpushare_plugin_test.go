package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/test/cluster"
)

// gpusharePlugin does what gpushare's device plugin does
// (github.com/AliyunContainerService/gpushare-device-plugin): IDs that name a
// GPU and mean nothing by it, and environment by the annotation of the pod of
// that amount which waits.
type gpusharePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	client kubernetes.Interface
	node   string
	uuids  []string
	units  int // of each GPU
}

func (p *gpusharePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *gpusharePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var ids []string
	for _, uuid := range p.uuids {
		for n := range p.units {
			ids = append(ids, fmt.Sprintf("%s-_-%d", uuid, n))
		}
	}
	return cluster.ListDevices(ids, stream)
}

func (p *gpusharePlugin) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	amount := len(req.GetContainerRequests()[0].GetDevicesIds())
	pod, err := p.waiting(ctx, amount)
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}})
	if err != nil {
		return nil, err
	}
	if _, err := p.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return nil, err
	}
	index := pod.Annotations["ALIYUN_COM_GPU_MEM_IDX"]
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{Envs: map[string]string{
		"NVIDIA_VISIBLE_DEVICES":       index,
		"ALIYUN_COM_GPU_MEM_IDX":       index,
		"ALIYUN_COM_GPU_MEM_POD":       strconv.Itoa(amount),
		"ALIYUN_COM_GPU_MEM_CONTAINER": strconv.Itoa(amount),
		"ALIYUN_COM_GPU_MEM_DEV":       strconv.Itoa(p.units),
	}}}}, nil
}

// waiting returns the pod of that amount which is to be admitted.
func (p *gpusharePlugin) waiting(ctx context.Context, amount int) (*v1.Pod, error) {
	pods, err := p.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending,spec.nodeName=" + p.node})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		if pod.Annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false" && pod.Annotations["ALIYUN_COM_GPU_MEM_POD"] == strconv.Itoa(amount) {
			return &pod, nil
		}
	}
	return nil, fmt.Errorf("no pod of %d units waits", amount)
}
