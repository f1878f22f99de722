package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// ServeDevicePlugin registers a device plugin of this process with the kubelet
// of a node. What it returns ends the plugin.
func (c *Cluster) ServeDevicePlugin(ctx context.Context, node, resource string, plugin pluginapi.DevicePluginServer) (stop func(), err error) {
	dir := filepath.Join(c.NodeDir(node), "lib", "kubelet", "device-plugins")
	socket := strings.ReplaceAll(resource, "/", "_") + ".sock"
	if err := os.RemoveAll(filepath.Join(dir, socket)); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, plugin)
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
			Version: pluginapi.Version, Endpoint: socket, ResourceName: resource,
		}, grpc.WaitForReady(true))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		server.Stop()
		return nil, fmt.Errorf("register a device plugin for %s on %s: %w", resource, node, err)
	}
	return server.Stop, nil
}

// ListDevices is ListAndWatch of a device plugin whose devices are healthy and
// stay the same.
func ListDevices(ids []string, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	list := &pluginapi.ListAndWatchResponse{}
	for _, id := range ids {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
