// Blocks of a grid on one thread of the CPU, one after the other. A CUDA thread is a fiber: it runs until an operation
// that threads of its warp or its block do together, and waits there until all of them have come. Whatever a GPU would
// leave undefined is an exception: that they come to different operations, or that some never do; accesses to shared
// memory that the launch did not ask for, and, through ptx/, to device memory of no tensor. New shared memory is NaNs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fastconv::emulated {

struct Index {
  uint32_t x;
};
extern Index thread_index, block_index, block_size;

// Threads that can go on take turns, and asynchronous copies are made when they are waited for; or one goes on for as
// long as it can, and copies are made at once. Where results depend on that, there is a race.
enum class Order { kTurns, kHaste };

struct Machine {
  Order order = Order::kTurns;
  std::vector<std::span<const char>> memory;  // of the device, that kernels may access
  int64_t columns_by_definition = 0;          // how often tile/depthwise_definition.cuh was needed
};
Machine& machine();

void run_grid(const char* kernel, int64_t blocks, int threads, int smem_bytes, const std::function<void()>& thread);

enum class Scope { kWarp, kBlock };
// `act` is called once, by the last who comes, with what each has brought, in the order of threads.
using Act = std::function<void(std::span<void*> brought)>;
void meet(Scope scope, const char* operation, void* mine, const Act& act);

template <typename T, typename F>
void with_warp(const char* operation, T& mine, const F& act) {
  meet(Scope::kWarp, operation, &mine, [&](std::span<void*> brought) {
    std::array<T*, 32> lanes;
    for (int i = 0; i < 32; ++i) lanes[i] = static_cast<T*>(brought[i]);
    act(lanes);
  });
}
template <typename T, typename F>
void with_block(const char* operation, T& mine, const F& act) {
  meet(Scope::kBlock, operation, &mine, [&](std::span<void*> brought) {
    std::vector<T*> threads;
    for (void* one : brought) threads.push_back(static_cast<T*>(one));
    act(threads);
  });
}

// Shared memory at an address, and the address of a pointer into it. `bytes` is the access's size and alignment.
char* shared(uint32_t address, int bytes);
uint32_t shared_address(const void* pointer);
// The pointer, if there is device memory.
const void* global(const void* pointer, int bytes);

// `from` null: zeros.
void async_copy(uint32_t to, const void* from, int bytes);
void async_copy_commit();
void async_copy_wait(int pending);

}  // namespace fastconv::emulated
