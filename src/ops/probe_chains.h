/* One probe loop: 12 independent chains hide the latency of any unit. Included with
 *   KR_PROBE_NAME  function to define      KR_PROBE_VECTOR  type of a sum
 *   KR_PROBE_START(i)  first value of chain i
 *   KR_PROBE_STEP(sum) the sum after one instruction
 *   KR_PROBE_VALUE(sum) a float of it      KR_PROBE_OPS  operations of one instruction */
double KR_PROBE_NAME(uint32_t iterations, float *sink)
{
    enum { CHAINS = 12 };
    KR_PROBE_VECTOR sum[CHAINS];
    float total = 0.0f;

    _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = KR_PROBE_START(i);
    for (uint32_t n = 0; n < iterations; n++)
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = KR_PROBE_STEP(sum[i]);
    _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) total += KR_PROBE_VALUE(sum[i]);
    *sink = total;
    return (double)CHAINS * KR_PROBE_OPS * iterations;
}

#undef KR_PROBE_NAME
#undef KR_PROBE_VECTOR
#undef KR_PROBE_START
#undef KR_PROBE_STEP
#undef KR_PROBE_VALUE
#undef KR_PROBE_OPS
