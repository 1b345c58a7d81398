// A CUDA device without CUDA: torch may switch to device 0, and nothing has to be done for it.
//
// Autograd asks the guard of a tensor's device for streams and events, and torch.Generator asks the
// hooks. A CPU build of torch has neither, so that tensors tagged as CUDA could not be differentiated.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kOnly(c10::DeviceType::CUDA, 0);

struct IdleGuard final : c10::impl::DeviceGuardImplInterface {
  // Devices
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return kOnly; }
  c10::Device exchangeDevice(c10::Device) const override { return kOnly; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  // Streams
  static c10::Stream only_stream() { return c10::Stream(c10::Stream::DEFAULT, kOnly); }
  c10::Stream getStream(c10::Device) const noexcept override { return only_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only_stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only_stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only_stream(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}

  // Events: all that was recorded has happened.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

const c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, new IdleGuard());

}  // namespace

namespace at {

struct IdleHooks final : CUDAHooksInterface {
  explicit IdleHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};

// torch looks the hooks up by the name `CUDAHooks`.
using CUDAHooks = IdleHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
