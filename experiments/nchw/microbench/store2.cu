// fp16 NCHW output of seed_3x3 as the engine's epilogue writes it: warpgroups of 4 warps, RUN pixels of one row x K channels at a time, a warp a channel.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdint>
#include <algorithm>
constexpr int N=16,P=1022,Q=1022,KT=128; constexpr int64_t PL=(int64_t)P*Q;
// MODE 0: 4-byte lanes from the run's start; 1: from the 128-byte line; 2: 16-byte lanes from the line, edges in 4 bytes; 3: like 0 after 16 bytes alignment only (8-byte lanes); 4: whole sectors only (as if tails were carried)
// order 0: strided tiles; 1: block takes a row; 2: block takes a chunk of all
template<int RUN,int MODE,int K> __global__ __launch_bounds__(256,1) void wr(uint16_t*y,int order,int delay){
  const int wg=threadIdx.x/128,w=threadIdx.x/32%4,l=threadIdx.x%32; const uint32_t v=threadIdx.x;
  constexpr int PER=(Q+2*RUN-1)/(2*RUN), G=KT/K; const int tiles=N*P*PER*G; const int chunk=(tiles+gridDim.x-1)/gridDim.x;
  const int run=order==0?1:order==1?PER*G:chunk; int left=run;
  for(int t=blockIdx.x*run;t<tiles;){
   const int g=t%G,u=t/G; const int q0=(u%PER)*2*RUN+wg*RUN,p=u/PER%P,n=u/PER/P; const int len=min(RUN,Q-q0);
   uint16_t*o=y+((int64_t)n*KT+g*K)*PL+(int64_t)p*Q+q0;
#pragma unroll 4
   for(int k=w;k<K;k+=4){ uint16_t*z=o+k*PL;
    if constexpr(MODE==0){
#pragma unroll
     for(int i=0;i<RUN/64;i++){ int q=2*l+64*i; if(q<len) *(uint32_t*)(z+q)=v; } }
    if constexpr(MODE==1){ const int a=((uintptr_t)z&127)/2;
#pragma unroll
     for(int i=0;i<=RUN/64;i++){ int q=2*l+64*i-a; if(q>=0&&q<len) *(uint32_t*)(z+q)=v; } }
    if constexpr(MODE==2){ const int a=((uintptr_t)z&15)/2;
#pragma unroll
     for(int i=0;i<(RUN+255)/256;i++){ int q=8*l+256*i+(8-a)%8; if(q+8<=len) *(uint4*)(z+q)=make_uint4(v,v,v,v); }
     const int b=(8-a)%8, e=(len-b)&7; if(l<4&&2*l<b) *(uint32_t*)(z+2*l)=v; if(l>=4&&l<8&&2*(l-4)<e) *(uint32_t*)(z+len-e+2*(l-4))=v; }
    if constexpr(MODE==4){ uint16_t*e=(uint16_t*)((uintptr_t)(z+len)&~31ull); uint16_t*s=(uint16_t*)((uintptr_t)z&~31ull); const int a=((uintptr_t)s&127)/2;
#pragma unroll
     for(int i=0;i<=RUN/64;i++){ int q=2*l+64*i-a; if(q>=0&&s+q<e) *(uint32_t*)(s+q)=v; } }
   }
   long long c=clock64(); while(clock64()-c<delay); asm volatile("bar.sync %0,128;"::"r"(1+wg));
   t++; if(--left==0){ t+=(gridDim.x-1)*run; left=run; } } }
template<class F> float tm(F f){ cudaEvent_t a,b; cudaEventCreate(&a);cudaEventCreate(&b); float best=1e9; for(int i=0;i<3;i++){ cudaEventRecord(a); f(); cudaEventRecord(b); cudaDeviceSynchronize(); float ms; cudaEventElapsedTime(&ms,a,b); best=std::min(best,ms); } return best; }
template<int RUN,int MODE,int K> void line(uint16_t*y){ printf("run %4d mode %d K %3d:",RUN,MODE,K); for(int d:{0,500}) for(int o=0;o<3;o++) printf("  delay %3d order %d %.2f",d,o,tm([&]{wr<RUN,MODE,K><<<132,256>>>(y,o,d);})); printf(" ms %s\n",cudaGetErrorString(cudaGetLastError())); fflush(stdout);}
int main(){ uint16_t*y; cudaMalloc(&y,(size_t)N*KT*PL*2+4096);
 line<64,0,128>(y); line<64,1,128>(y); line<64,2,128>(y); line<128,0,128>(y); line<128,1,128>(y); line<128,2,128>(y); line<128,4,128>(y);
 line<256,0,64>(y); line<256,1,64>(y); line<256,2,64>(y); line<256,4,64>(y); line<512,0,64>(y); line<512,1,64>(y); line<512,2,64>(y); line<512,4,64>(y); }
