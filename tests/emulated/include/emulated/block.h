// Blocks of a grid on one thread of the CPU, one after the other, or those together that wait for each other. A CUDA
// thread is a fiber: it runs until an operation that threads of its warp or its block do together, or a barrier, and
// waits there. Whatever a GPU would leave undefined is an exception: that threads come to different operations, or that
// some never do; accesses to shared memory that the launch did not ask for, and, through ptx/, to device memory of no
// tensor. New shared memory is NaNs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fastconv::emulated {

struct Index {
  uint32_t x;
};
extern Index thread_index, block_index, block_size, grid_size;

// Threads that can go on take turns, and what is asynchronous, copies and wgmma, is done when nobody can go on without
// it or somebody waits for it; or one thread goes on for as long as it can, and all is done at once. Where results
// depend on that, there is a race.
enum class Order { kTurns, kHaste };

struct Machine {
  Order order = Order::kTurns;
  bool runs_together = true;                  // all blocks of a launch, if they ask for it and may be refused
  std::vector<std::span<const char>> memory;  // of the device, that kernels may access
  int64_t columns_by_definition = 0;          // how often families/depthwise/definition.cuh, or the like, was needed
};
Machine& machine();

struct Grid {
  int64_t blocks;
  int threads, smem_bytes;
  int cluster = 1;           // blocks
  bool cooperative = false;  // all blocks run together
};
void run_grid(const char* kernel, const Grid& grid, const std::function<void()>& thread);

[[noreturn]] void fail(const std::string& what);

enum class Scope { kWarp, kWarpgroup, kBlock };
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

// Named barriers of some threads of a block.
void barrier_arrive(int barrier, int threads);
void barrier_sync(int barrier, int threads);
// All threads of the cluster that have not ended.
void cluster_sync();
int cluster_rank();
// For a loop that reads what another thread writes: others first.
void poll(const char* operation);
// Zero at first, for all blocks of a cooperative launch.
uint32_t* grid_word();

// Barriers in shared memory.
void mbarrier_init(uint32_t barrier, uint32_t arrivals);
void mbarrier_invalidate(uint32_t barrier);
void mbarrier_expect(uint32_t barrier, uint32_t bytes);
void mbarrier_arrive(uint32_t barrier);
void mbarrier_wait(uint32_t barrier, uint32_t parity);

// Shared memory at an address, and the address of a pointer into it. `bytes` is the access's size and alignment.
char* shared(uint32_t address, int bytes, int rank = -1);
uint32_t shared_address(const void* pointer);
char* shared_memory();  // the block's
// The pointer, if there is device memory.
const void* global(const void* pointer, int bytes);

// What a thread wrote there TMA and wgmma may touch once it has fenced it.
char* shared_for_write(uint32_t address, int bytes);
bool is_fenced(uint32_t address, int bytes);
char* shared_for_engine(uint32_t address, int bytes);  // it is an exception otherwise
void fence_shared();

// By the thread itself. `from` null: zeros.
void async_copy(uint32_t to, const void* from, int bytes);
void async_copy_commit();
void async_copy_wait(int pending);
// By TMA, which counts bytes on a barrier when it has called `copy`.
void engine_copy(uint32_t barrier, uint32_t bytes, std::function<void()> copy);
// Of the thread, in groups.
void engine_store(std::function<void()> store);
void engine_store_commit();
void engine_store_wait(int pending);

// By a warpgroup: products in groups. `multiply` runs before the thread returns from the wait for its group.
void warpgroup_multiply(std::function<void()> multiply);
void warpgroup_commit();
void warpgroup_wait(int pending);

}  // namespace fastconv::emulated
